// The one table of ggml's tensor types that a weight can be encoded to, and the rules of their use.
// Everything else that needs a fact about a type asks here; a test compares each row with ggml.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ggml.h"

namespace voodoo::quant {

/// What a type's encoder does with an importance matrix.
enum class ImatrixNeed {
    none,      ///< ignores it: the bytes are the same with and without
    helps,     ///< uses it when there is one
    required,  ///< llama-quantize or ggml itself refuses to encode without one
};

/// One row of the table. All facts hold for llama.cpp v0.5.0.
struct TypeInfo {
    ggml_type type;
    std::string_view
        name;  ///< upper case, e.g. "Q4_K"; any case is accepted by find_type and llama-quantize
    int64_t block_size;    ///< weights per block; a row must be a multiple of it
    uint64_t block_bytes;  ///< encoded size of a block
    ImatrixNeed imatrix;
    bool aborts_without_imatrix;  ///< ggml_quantize_chunk aborts; no exemption for embeddings and
                                  ///< head
    bool whole_row_statistics;    ///< with an imatrix, a block's bytes depend on the whole row
    bool candidate;               ///< can be chosen for a weight (false: F32, a source type only)
    bool runs_matmul;    ///< stock llama.cpp's CPU backend multiplies with it (MUL_MAT's src0)
    bool runs_get_rows;  ///< and looks rows up in it (GET_ROWS' src0)
    // Measured on one core; tests/quant/type_costs.cpp prints them for another machine.
    float init_seconds;  ///< CPU time to build the encoder's tables, once per process and library
                         ///< (IQ1_S, IQ1_M share one)
    float encode_ns;     ///< per weight after that, with an imatrix where it is used
    float decode_ns;     ///< per weight, to float

    double bits_per_weight() const {
        return 8.0 * static_cast<double>(block_bytes) / static_cast<double>(block_size);
    }
};

/// Shape of a weight tensor as the quantizers see it: n_mat matrices (experts) of n_rows rows of
/// n_per_row values, contiguous in that order (ggml's ne0 = n_per_row, ne1 = n_rows, ne2 * ne3 =
/// n_mat).
struct MatrixShape {
    int64_t n_per_row = 0;
    int64_t n_rows = 0;  ///< per matrix
    int64_t n_mat = 1;

    int64_t total_rows() const { return n_rows * n_mat; }
    int64_t n_elements() const { return n_per_row * n_rows * n_mat; }
    bool operator==(const MatrixShape&) const = default;
};

/// The table, ascending in bits per weight. Lives for ever.
std::span<const TypeInfo> all_types();

/// Row of a type, nullptr if it is not in the table.
const TypeInfo* find_type_info(ggml_type type);

/// Row of a type that is known to be in the table; anything else is a bug (VOODOO_CHECK).
const TypeInfo& type_info(ggml_type type);

/// Type of a name in any case ("q4_k", "Q4_K"); nothing if the table does not have it.
std::optional<ggml_type> find_type(std::string_view name);

/// Whether llama-quantize exempts this tensor from its imatrix rule: token_embd.weight,
/// per_layer_token_embd.weight, output.weight.
bool is_embedding_or_head(std::string_view tensor_name);

/// Whether a row of n_per_row values may be encoded to `type`: the block size divides the row, and
/// without an imatrix neither llama-quantize nor ggml refuses. F32 is never legal as a candidate.
/// False for types not in the table.
bool is_legal(ggml_type type, int64_t n_per_row, bool have_imatrix, bool is_embedding_or_head);

/// Encoded size of one row. n_per_row must be a multiple of the block size.
uint64_t row_bytes(ggml_type type, int64_t n_per_row);

/// Encoded size of n_rows rows.
uint64_t size_bytes(ggml_type type, int64_t n_per_row, int64_t n_rows);

}  // namespace voodoo::quant
