#include "engine/segments.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/instantiate.h"

namespace voodoo::engine {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

uint64_t value_bytes(const Value& value) {
    return ggml_row_size(value.type, value.ne[0]) *
           static_cast<uint64_t>(value.ne[1] * value.ne[2] * value.ne[3]);
}

/// Position of the last reader of each op value (views count for their root), or -1.
std::vector<ValueId> last_readers(const Graph& graph) {
    std::vector<ValueId> last(static_cast<size_t>(graph.size()), -1);
    for (ValueId id = 0; id < graph.size(); ++id) {
        if (graph[id].kind != ValueKind::op) continue;
        for (const ValueId src : graph[id].src) {
            if (src != kNoValue) last[static_cast<size_t>(graph.root(src))] = id;
        }
    }
    return last;
}

/// live[p]: bytes of op values made before p and read at p or later.
std::vector<uint64_t> live_bytes(const Graph& graph, ValueId end) {
    const std::vector<ValueId> last = last_readers(graph);
    std::vector<int64_t> change(static_cast<size_t>(graph.size()) + 2, 0);
    for (ValueId id = 0; id < end; ++id) {
        if (graph[id].kind != ValueKind::op || last[static_cast<size_t>(id)] < 0) continue;
        const auto bytes = static_cast<int64_t>(value_bytes(graph[id]));
        change[static_cast<size_t>(id) + 1] += bytes;
        change[static_cast<size_t>(last[static_cast<size_t>(id)]) + 1] -= bytes;
    }
    std::vector<uint64_t> live(static_cast<size_t>(end) + 1, 0);
    int64_t sum = 0;
    for (size_t p = 0; p < live.size(); ++p) {
        sum += change[p];
        live[p] = static_cast<uint64_t>(sum);
    }
    return live;
}

/// The head: the last MUL_MAT whose left operand is a weight (or a view of one).
ValueId find_head(const Graph& graph) {
    for (ValueId id = graph.output; id >= 0; --id) {
        const Value& value = graph[id];
        if (value.kind == ValueKind::op && value.op == GGML_OP_MUL_MAT &&
            graph[graph.root(value.src[0])].kind == ValueKind::weight) {
            return id;
        }
    }
    throw Error(ErrorKind::unsupported_model, "the graph has no head: no matmul with a weight");
}

Segment describe(const Graph& graph, ValueId begin, ValueId end, ValueId result) {
    Segment segment;
    segment.begin = begin;
    segment.end = end;
    std::set<ValueId> inputs, weights;
    for (ValueId id = begin; id < end; ++id) {
        if (graph[id].kind != ValueKind::op) continue;
        segment.activation_bytes += value_bytes(graph[id]);
        for (const ValueId src : graph[id].src) {
            if (src == kNoValue) continue;
            const ValueId root = graph.root(src);
            if (graph[root].kind == ValueKind::op && root < begin) inputs.insert(root);
            if (graph[root].kind == ValueKind::weight) weights.insert(root);
        }
    }
    segment.inputs.assign(inputs.begin(), inputs.end());
    for (const ValueId weight : weights)
        segment.weight_elements += static_cast<uint64_t>(graph[weight].n_elements());
    const std::vector<ValueId> last = last_readers(graph);
    for (ValueId id = begin; id < end; ++id) {
        if (graph[id].kind != ValueKind::op) continue;
        if (id == result || last[static_cast<size_t>(id)] >= end) segment.outputs.push_back(id);
    }
    return segment;
}

/// Positions where few bytes cross: borders of blocks that may become borders of segments.
std::vector<ValueId> cut_positions(const Graph& graph, ValueId end) {
    const std::vector<uint64_t> live = live_bytes(graph, end);
    uint64_t smallest = UINT64_MAX;
    for (ValueId p = 1; p < end; ++p) {
        if (live[static_cast<size_t>(p)] > 0)
            smallest = std::min(smallest, live[static_cast<size_t>(p)]);
    }
    std::vector<ValueId> cuts;
    for (ValueId p = 1; p < end; ++p) {
        const uint64_t bytes = live[static_cast<size_t>(p)];
        // Up to twice the residual stream: models with a second stream have no narrower place.
        if (bytes > 0 && bytes <= 2 * smallest && graph[p - 1].kind == ValueKind::op)
            cuts.push_back(p);
    }
    return cuts;
}

}  // namespace

uint64_t segment_bytes(const Segment& segment, int resident_copies) {
    // A backward pass needs about as much again for gradients in flight.
    return segment.weight_elements * sizeof(float) * static_cast<uint64_t>(resident_copies) +
           segment.activation_bytes * 2;
}

SegmentPlan plan_segments(const Graph& graph, uint64_t memory_bytes, int resident_copies) {
    SegmentPlan plan;
    const ValueId head = find_head(graph);
    plan.hidden = graph.root(graph[head].src[1]);
    plan.head_weight = graph.root(graph[head].src[0]);
    VOODOO_CHECK(graph[plan.hidden].kind == ValueKind::op, "the head reads a leaf");
    // The tail starts right after the hidden state; what lies between it and the head belongs to
    // the tail.
    const ValueId border = plan.hidden + 1;
    plan.tail = describe(graph, border, graph.output + 1, graph.output);
    plan.tail_is_row_wise = graph::is_row_wise(graph, border, graph.output + 1) &&
                            plan.tail.inputs.size() == 1 &&
                            graph[plan.hidden].ne[1] == graph.n_tokens;

    ValueId begin = 0;
    ValueId last_cut = 0;
    if (memory_bytes > 0) {
        for (const ValueId cut : cut_positions(graph, border)) {
            const Segment grown = describe(graph, begin, cut, kNoValue);
            if (segment_bytes(grown, resident_copies) > memory_bytes && last_cut > begin) {
                plan.body.push_back(describe(graph, begin, last_cut, kNoValue));
                begin = last_cut;
            }
            last_cut = cut;
        }
        const Segment rest = describe(graph, begin, border, plan.hidden);
        if (segment_bytes(rest, resident_copies) > memory_bytes && last_cut > begin &&
            last_cut < border) {
            plan.body.push_back(describe(graph, begin, last_cut, kNoValue));
            begin = last_cut;
        }
    }
    plan.body.push_back(describe(graph, begin, border, plan.hidden));
    return plan;
}

}  // namespace voodoo::engine
