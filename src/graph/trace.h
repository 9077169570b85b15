// A recorded ggml graph: what one real llama_decode executed, tensor by tensor, as plain data.
// Made by model/capture; turned into an SSA graph by graph/functionalize. Nothing here computes.
#pragma once

#include <ggml.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace voodoo::graph {

using Shape = std::array<int64_t, GGML_MAX_DIMS>;
using OpParams = std::array<int32_t, GGML_MAX_OP_PARAMS / sizeof(int32_t)>;
using Bytes = std::vector<std::byte>;

/// One tensor of the recorded graph. Sources and view roots are indices into Trace::tensors.
struct TraceTensor {
    std::string name;
    ggml_op op = GGML_OP_NONE;
    ggml_type type = GGML_TYPE_F32;
    Shape ne{};                              ///< elements per dimension, ne0 first
    std::array<size_t, GGML_MAX_DIMS> nb{};  ///< strides in bytes
    OpParams op_params{};
    std::vector<int> src;               ///< -1 for an absent source between others
    int view_src = -1;                  ///< the tensor that owns the memory, if not this one
    size_t view_offset = 0;             ///< bytes from the start of view_src
    bool is_weight = false;             ///< lives in a weights buffer of the model
    bool is_zero = false;               ///< a leaf that held only zero bytes (a fresh cache)
    std::shared_ptr<const Bytes> data;  ///< value of a leaf that is neither weight nor zero
};

/// The recorded graph of one batch of tokens.
struct Trace {
    std::vector<TraceTensor> tensors;
    std::vector<int> order;       ///< executed nodes, in order
    int output = -1;              ///< logits: ne = {n_vocab, n_tokens}
    std::vector<int32_t> tokens;  ///< the tokens of the recorded batch
    int n_sequences = 1;  ///< tokens are n_sequences chunks of equal length, one after another
};

}  // namespace voodoo::graph
