// SSA graph -> ggml tensors in a caller's context, whole or a range of values. Creates nodes only:
// allocation and computation are the engine's.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace voodoo::graph {

struct InstantiateOptions {
    /// Type of a weight leaf in the program; empty: as stored in the file.
    std::function<ggml_type(ValueId weight)> weight_type;
    /// GELU and GELU_QUICK by exact arithmetic instead of the CPU backend's table of F16 values, so
    /// that finite differences of the forward pass are smooth. For checks; forward only.
    bool exact_gelu = false;
    /// Number of columns (ne1) of the graph's values, if not the graph's own: only for ranges of
    /// row-wise ops (is_row_wise) over a boundary of shape [n, n_columns].
    int64_t n_columns = 0;
};

/// ggml tensors of a range of values.
struct Instance {
    /// By value id; nullptr for what the range does not touch.
    std::vector<ggml_tensor*> tensors;
    /// Every created node (ops and views), topological.
    std::vector<ggml_tensor*> nodes;
    /// Values from before the range that it reads: created as leaves, flagged as inputs.
    std::vector<ValueId> boundary;
    /// Weight, token, constant and zero leaves that it reads.
    std::vector<ValueId> leaves;

    ggml_tensor* operator[](ValueId id) const { return tensors[static_cast<size_t>(id)]; }
};

/// Creates the values [begin, end) that are needed for `end - 1` and whatever the caller reads
/// later: all ops of the range. Leaves and views are made where they are used.
Instance instantiate(const Graph& graph, ggml_context* context, ValueId begin, ValueId end,
                     const InstantiateOptions& options = {});

/// Whether every op in [begin, end) treats the columns (ne1) of its inputs independently, so that
/// the range may be run on slices of columns.
bool is_row_wise(const Graph& graph, ValueId begin, ValueId end);

/// ggml context size for n tensors.
size_t context_size_bytes(size_t n_tensors);

}  // namespace voodoo::graph
