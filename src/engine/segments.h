// Cuts a graph into segments that are executed one after another, so that only one segment's
// weights and activations need to be in memory. Pure planning: nothing is allocated.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace voodoo::engine {

/// A range of values [begin, end) and what its execution needs.
struct Segment {
    graph::ValueId begin = 0;
    graph::ValueId end = 0;
    std::vector<graph::ValueId> inputs;   ///< op values from before `begin` that it reads
    std::vector<graph::ValueId> outputs;  ///< its op values that later segments read
    uint64_t weight_elements = 0;
    uint64_t activation_bytes =
        0;  ///< sum over its op values, an upper bound of what a backward pass keeps
};

/// The body's segments, and the tail that turns hidden states into logits.
struct SegmentPlan {
    std::vector<Segment> body;
    Segment tail;
    graph::ValueId hidden =
        graph::kNoValue;  ///< the body's result: the input of the head's matmul, [n_embd, n_tokens]
    graph::ValueId head_weight = graph::kNoValue;  ///< the weight that the head's matmul reads
    bool tail_is_row_wise = false;                 ///< the tail may run on slices of tokens
};

/// memory_bytes: what one body segment may need in weights and activations (see segment_bytes); 0:
/// no limit, one segment. A single layer that needs more is still one segment: the plan is then the
/// smallest possible. `resident_copies`: F32 copies of each weight that are held at once (the
/// mixture, its transpose, a gradient).
SegmentPlan plan_segments(const graph::Graph& graph, uint64_t memory_bytes, int resident_copies);

/// Memory that a segment needs while it runs, in bytes.
uint64_t segment_bytes(const Segment& segment, int resident_copies);

}  // namespace voodoo::engine
