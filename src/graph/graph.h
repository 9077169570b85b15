// Our intermediate representation: a pure (SSA) tensor program. Every value is written once; caches
// and in-place writes of the recorded graph are gone (graph/functionalize). Ops, types, parameters
// and shapes are ggml's own, so that an op that llama.cpp gains needs no code here.
#pragma once

#include <string>
#include <vector>

#include "graph/trace.h"

namespace voodoo::graph {

using ValueId = int32_t;
constexpr ValueId kNoValue = -1;

enum class ValueKind {
    weight,    ///< a tensor of the model file, by name
    tokens,    ///< the token ids, I32 [n_tokens]: the only input that varies from batch to batch
    constant,  ///< positions, masks, indices: data recorded with the graph
    zeros,     ///< a constant of zeros without data
    view,      ///< a strided window on src[0], which is never a view itself
    op,        ///< a ggml op on src
};

/// One value. Owning values are contiguous.
struct Value {
    ValueKind kind = ValueKind::op;
    ggml_op op = GGML_OP_NONE;
    ggml_type type = GGML_TYPE_F32;
    Shape ne{};
    OpParams op_params{};
    std::vector<ValueId> src;           ///< kNoValue for absent sources
    std::string name;                   ///< ggml's name; of a weight: the tensor's name in the file
    Shape stride{};                     ///< views: strides in elements of src[0]'s storage
    int64_t offset = 0;                 ///< views: offset in elements
    std::shared_ptr<const Bytes> data;  ///< constants

    int64_t n_elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
    bool is_leaf() const { return kind != ValueKind::view && kind != ValueKind::op; }
};

/// A program from token ids to logits. Values are in topological order.
struct Graph {
    std::vector<Value> values;
    ValueId output = kNoValue;  ///< logits, F32 [n_vocab, n_tokens]
    int64_t n_tokens = 0;
    int n_sequences = 1;

    const Value& operator[](ValueId id) const { return values[static_cast<size_t>(id)]; }
    ValueId size() const { return static_cast<ValueId>(values.size()); }
    int64_t n_vocab() const { return (*this)[output].ne[0]; }
    /// The value that owns the memory of `id`: itself, or src[0] of a view.
    ValueId root(ValueId id) const {
        return (*this)[id].kind == ValueKind::view ? (*this)[id].src[0] : id;
    }
    /// Weight leaves in order.
    std::vector<ValueId> weights() const;
};

/// Checks the invariants above; throws Error(internal) naming the value that breaks one.
void verify(const Graph& graph);

/// One line per value, for people.
std::string dump(const Graph& graph);

/// Name of the op with its variant, e.g. "UNARY(GELU)", "GLU(SWIGLU)", "MUL_MAT".
std::string op_label(const Value& value);

}  // namespace voodoo::graph
