#include "engine/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace voodoo::engine {
namespace {

using graph::Graph;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

constexpr int64_t kWidth = 64;
constexpr int64_t kTokens = 16;
constexpr int64_t kVocab = 100;

ValueId push(Graph& graph, ValueKind kind, ggml_op op, graph::Shape ne, std::vector<ValueId> src) {
    Value value;
    value.kind = kind;
    value.op = op;
    value.ne = ne;
    value.src = std::move(src);
    value.name = "v" + std::to_string(graph.size());
    graph.values.push_back(std::move(value));
    return graph.size() - 1;
}

/// n residual layers: x = x + W2 relu(W1 x), then a head.
Graph residual_model(int n_layers) {
    Graph graph;
    graph.n_tokens = kTokens;
    ValueId x = push(graph, ValueKind::op, GGML_OP_SCALE, {kWidth, kTokens, 1, 1},
                     {push(graph, ValueKind::weight, GGML_OP_NONE, {kWidth, kTokens, 1, 1}, {})});
    for (int i = 0; i < n_layers; ++i) {
        const ValueId w1 =
            push(graph, ValueKind::weight, GGML_OP_NONE, {kWidth, 4 * kWidth, 1, 1}, {});
        const ValueId up =
            push(graph, ValueKind::op, GGML_OP_MUL_MAT, {4 * kWidth, kTokens, 1, 1}, {w1, x});
        const ValueId relu =
            push(graph, ValueKind::op, GGML_OP_UNARY, {4 * kWidth, kTokens, 1, 1}, {up});
        const ValueId w2 =
            push(graph, ValueKind::weight, GGML_OP_NONE, {4 * kWidth, kWidth, 1, 1}, {});
        const ValueId down =
            push(graph, ValueKind::op, GGML_OP_MUL_MAT, {kWidth, kTokens, 1, 1}, {w2, relu});
        x = push(graph, ValueKind::op, GGML_OP_ADD, {kWidth, kTokens, 1, 1}, {x, down});
    }
    const ValueId norm = push(graph, ValueKind::op, GGML_OP_RMS_NORM, {kWidth, kTokens, 1, 1}, {x});
    const ValueId head = push(graph, ValueKind::weight, GGML_OP_NONE, {kWidth, kVocab, 1, 1}, {});
    graph.output =
        push(graph, ValueKind::op, GGML_OP_MUL_MAT, {kVocab, kTokens, 1, 1}, {head, norm});
    return graph;
}

/// Segments cover the body once, and each reads only what earlier ones put out.
void expect_consistent(const Graph& graph, const SegmentPlan& plan) {
    ValueId next = 0;
    std::set<ValueId> made;
    for (const Segment& segment : plan.body) {
        EXPECT_EQ(segment.begin, next);
        EXPECT_LT(segment.begin, segment.end);
        for (const ValueId id : segment.inputs) EXPECT_TRUE(made.contains(id)) << id;
        made.insert(segment.outputs.begin(), segment.outputs.end());
        next = segment.end;
    }
    EXPECT_EQ(plan.tail.begin, next);
    EXPECT_EQ(plan.tail.end, graph.output + 1);
    for (const ValueId id : plan.tail.inputs) EXPECT_TRUE(made.contains(id)) << id;
}

TEST(Segments, WithoutALimitTheBodyIsOneSegment) {
    const Graph graph = residual_model(6);
    const SegmentPlan plan = plan_segments(graph, 0, 2);
    EXPECT_EQ(plan.body.size(), 1u);
    EXPECT_TRUE(plan.tail_is_row_wise);
    expect_consistent(graph, plan);
}

TEST(Segments, SmallerLimitsMakeMoreSegmentsThatRespectThem) {
    const Graph graph = residual_model(12);
    const uint64_t whole = segment_bytes(plan_segments(graph, 0, 2).body[0], 2);
    size_t n_before = 1;
    for (const uint64_t parts : {2, 4, 8}) {
        const SegmentPlan plan = plan_segments(graph, whole / parts, 2);
        expect_consistent(graph, plan);
        EXPECT_GT(plan.body.size(), n_before) << parts;
        n_before = plan.body.size();
        for (const Segment& segment : plan.body)
            EXPECT_LE(segment_bytes(segment, 2), whole / parts);
    }
}

TEST(Segments, AnImpossibleLimitGivesTheSmallestSegmentsThereAre) {
    const Graph graph = residual_model(4);
    const SegmentPlan plan = plan_segments(graph, 1, 2);
    expect_consistent(graph, plan);
    EXPECT_GE(plan.body.size(), 4u);
}

TEST(Segments, AGraphWithoutAHeadIsRefused) {
    Graph graph;
    graph.n_tokens = kTokens;
    const ValueId w = push(graph, ValueKind::weight, GGML_OP_NONE, {kWidth, kTokens, 1, 1}, {});
    graph.output = push(graph, ValueKind::op, GGML_OP_SCALE, {kWidth, kTokens, 1, 1}, {w});
    try {
        plan_segments(graph, 0, 2);
        FAIL() << "no exception";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::unsupported_model);
    }
}

}  // namespace
}  // namespace voodoo::engine
