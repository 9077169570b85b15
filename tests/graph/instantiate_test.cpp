#include "graph/instantiate.h"

#include <gtest/gtest.h>

#include <memory>

namespace voodoo::graph {
namespace {

/// weight [64, 8] -> a view of its rows 2..5 -> SCALE -> SQR.
Graph view_graph(ggml_type type) {
    Graph graph;
    graph.n_tokens = 4;
    Value weight;
    weight.kind = ValueKind::weight;
    weight.type = type;
    weight.ne = {64, 8, 1, 1};
    weight.name = "w";
    Value view;
    view.kind = ValueKind::view;
    view.op = GGML_OP_VIEW;
    view.type = type;
    view.ne = {64, 4, 1, 1};
    view.stride = {1, 64, 256, 256};
    view.offset = 128;
    view.src = {0};
    view.name = "rows";
    Value scale;
    scale.op = GGML_OP_SCALE;
    scale.ne = {64, 4, 1, 1};
    scale.src = {1};
    scale.name = "scale";
    Value square = scale;
    square.op = GGML_OP_SQR;
    square.src = {2};
    square.name = "square";
    graph.values = {weight, view, scale, square};
    graph.output = 3;
    return graph;
}

class InstantiateTest : public testing::Test {
protected:
    std::unique_ptr<ggml_context, void (*)(ggml_context*)> context_{
        ggml_init({context_size_bytes(32), nullptr, true}), ggml_free};
};

TEST_F(InstantiateTest, StridesFollowTheTypeThatTheWeightHasInTheProgram) {
    const Graph graph = view_graph(GGML_TYPE_Q8_0);
    const Instance stored = instantiate(graph, context_.get(), 0, 4);
    EXPECT_EQ(stored[1]->nb[1], ggml_row_size(GGML_TYPE_Q8_0, 64));
    EXPECT_EQ(stored[1]->view_offs, 2 * ggml_row_size(GGML_TYPE_Q8_0, 64));
    InstantiateOptions options;
    options.weight_type = [](ValueId) { return GGML_TYPE_F32; };
    const Instance floats = instantiate(graph, context_.get(), 0, 4, options);
    EXPECT_EQ(floats[1]->type, GGML_TYPE_F32);
    EXPECT_EQ(floats[1]->nb[1], 64 * sizeof(float));
    EXPECT_EQ(floats[1]->view_offs, 128 * sizeof(float));
    EXPECT_EQ(floats[1]->view_src, floats[0]);
}

TEST_F(InstantiateTest, ARangeTakesEarlierValuesAsInputs) {
    const Graph graph = view_graph(GGML_TYPE_F32);
    const Instance instance = instantiate(graph, context_.get(), 3, 4);
    ASSERT_EQ(instance.boundary, std::vector<ValueId>{2});
    EXPECT_EQ(instance[2]->op, GGML_OP_NONE);
    EXPECT_NE(instance[2]->flags & GGML_TENSOR_FLAG_INPUT, 0);
    EXPECT_EQ(instance[3]->src[0], instance[2]);
    EXPECT_EQ(instance.nodes.size(), 1u);
}

TEST_F(InstantiateTest, ARowWiseRangeMayHaveFewerColumns) {
    const Graph graph = view_graph(GGML_TYPE_F32);
    InstantiateOptions options;
    options.n_columns = 2;
    const Instance instance = instantiate(graph, context_.get(), 3, 4, options);
    EXPECT_EQ(instance[2]->ne[1], 2);
    EXPECT_EQ(instance[3]->ne[1], 2);
}

TEST(IsRowWise, HoldsForAHeadAndNotForAViewOrAnUnknownOp) {
    Graph graph;
    graph.n_tokens = 4;
    Value hidden;
    hidden.op = GGML_OP_RMS_NORM;
    hidden.ne = {64, 4, 1, 1};
    Value weight;
    weight.kind = ValueKind::weight;
    weight.ne = {64, 100, 1, 1};
    Value head;
    head.op = GGML_OP_MUL_MAT;
    head.ne = {100, 4, 1, 1};
    head.src = {1, 0};
    Value scale;
    scale.op = GGML_OP_SCALE;
    scale.ne = {100, 4, 1, 1};
    scale.src = {2};
    graph.values = {hidden, weight, head, scale};
    EXPECT_TRUE(is_row_wise(graph, 1, 4));
    EXPECT_FALSE(is_row_wise(graph, 0, 4));  // RMS_NORM is not on the list
    graph.values[3].op = GGML_OP_SOFT_MAX;
    EXPECT_FALSE(is_row_wise(graph, 1, 4));
}

}  // namespace
}  // namespace voodoo::graph
