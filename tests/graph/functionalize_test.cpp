#include "graph/functionalize.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>

#include "base/error.h"

namespace voodoo::graph {
namespace {

/// Records a ggml graph built by hand as model/capture records llama.cpp's: leaves named "w..." are
/// weights, "cache..." are zero, "tokens" are the token ids, others are constants.
class TraceBuilder {
public:
    TraceBuilder() : context_(ggml_init({1 << 20, nullptr, false}), ggml_free) {}

    ggml_context* context() { return context_.get(); }
    ggml_tensor* leaf(const char* name, std::vector<int64_t> ne, ggml_type type = GGML_TYPE_F32) {
        ggml_tensor* t = ggml_new_tensor(context(), type, static_cast<int>(ne.size()), ne.data());
        ggml_set_name(t, name);
        std::memset(t->data, name[0] == 'c' ? 0 : 1, ggml_nbytes(t));
        return t;
    }
    void run(ggml_tensor* node) { order_.push_back(node); }

    Trace trace(ggml_tensor* output, const std::vector<int32_t>& tokens) {
        Trace trace;
        for (ggml_tensor* node : order_) trace.order.push_back(id_of(node, trace));
        trace.output = ids_.at(output);
        trace.tokens = tokens;
        return trace;
    }

private:
    int id_of(const ggml_tensor* tensor, Trace& trace) {
        if (const auto known = ids_.find(tensor); known != ids_.end()) return known->second;
        TraceTensor t;
        t.name = tensor->name;
        t.op = tensor->op;
        t.type = tensor->type;
        std::copy_n(tensor->ne, GGML_MAX_DIMS, t.ne.begin());
        std::copy_n(tensor->nb, GGML_MAX_DIMS, t.nb.begin());
        std::memcpy(t.op_params.data(), tensor->op_params, sizeof(tensor->op_params));
        t.view_offset = tensor->view_offs;
        if (tensor->view_src != nullptr) t.view_src = id_of(tensor->view_src, trace);
        for (const ggml_tensor* src : tensor->src) {
            if (src != nullptr) t.src.push_back(id_of(src, trace));
        }
        if (tensor->op == GGML_OP_NONE) {
            t.is_weight = t.name.starts_with("w");
            t.is_zero = t.name.starts_with("cache");
            const auto* bytes = static_cast<const std::byte*>(tensor->data);
            if (!t.is_weight && !t.is_zero)
                t.data = std::make_shared<Bytes>(bytes, bytes + ggml_nbytes(tensor));
        }
        trace.tensors.push_back(std::move(t));
        ids_.emplace(tensor, static_cast<int>(trace.tensors.size()) - 1);
        return ids_.at(tensor);
    }

    std::unique_ptr<ggml_context, void (*)(ggml_context*)> context_;
    std::vector<ggml_tensor*> order_;
    std::map<const ggml_tensor*, int> ids_;
};

const Value& only_op(const Graph& graph, ggml_op op) {
    const Value* found = nullptr;
    for (const Value& value : graph.values) {
        if (value.kind == ValueKind::op && value.op == op) {
            EXPECT_EQ(found, nullptr) << ggml_op_name(op) << " stands twice";
            found = &value;
        }
    }
    VOODOO_CHECK(found != nullptr, "no {}", ggml_op_name(op));
    return *found;
}

const std::vector<int32_t> kTokens = {5, 6, 7};

TEST(Functionalize, AReadAfterAWriteSeesTheWrittenVersion) {
    TraceBuilder b;
    ggml_tensor* cache = b.leaf("cache", {4, 3});
    ggml_tensor* x = b.leaf("w_x", {4, 3});
    ggml_tensor* rows = b.leaf("rows", {3}, GGML_TYPE_I64);
    // The view of the cache is made before the write, and read after it.
    ggml_tensor* view = ggml_view_2d(b.context(), cache, 4, 3, cache->nb[1], 0);
    ggml_tensor* scaled = ggml_scale(b.context(), x, 2.0F);
    ggml_tensor* written = ggml_set_rows(b.context(), cache, scaled, rows);
    ggml_tensor* output = ggml_sqr(b.context(), view);
    for (ggml_tensor* node : {view, scaled, written, output}) b.run(node);
    const Graph graph = functionalize(b.trace(output, kTokens));
    const Value& square = only_op(graph, GGML_OP_SQR);
    EXPECT_EQ(graph[square.src[0]].op, GGML_OP_SET_ROWS);
    const Value& set = only_op(graph, GGML_OP_SET_ROWS);
    ASSERT_EQ(set.src.size(), 3u);
    EXPECT_EQ(graph[set.src[0]].op, GGML_OP_SCALE);
    EXPECT_EQ(graph[set.src[2]].kind, ValueKind::zeros);
}

TEST(Functionalize, AReadBeforeAWriteSeesTheOldVersion) {
    TraceBuilder b;
    ggml_tensor* x = b.leaf("w_x", {4, 3});
    ggml_tensor* a = ggml_scale(b.context(), x, 2.0F);
    ggml_tensor* before = ggml_sqr(b.context(), a);
    ggml_tensor* in_place = ggml_scale_inplace(b.context(), a, 3.0F);
    ggml_tensor* output = ggml_add(b.context(), before, a);
    for (ggml_tensor* node : {a, before, in_place, output}) b.run(node);
    const Graph graph = functionalize(b.trace(output, kTokens));
    const Value& square = only_op(graph, GGML_OP_SQR);
    const Value& add = only_op(graph, GGML_OP_ADD);
    EXPECT_NE(square.src[0], add.src[1]);
    // The newest version of `a` is the in-place scale of the old one.
    EXPECT_EQ(graph[add.src[1]].src[0], square.src[0]);
}

TEST(Functionalize, APartialWriteBecomesSetOnTheOldVersion) {
    TraceBuilder b;
    ggml_tensor* state = b.leaf("cache", {4, 3});
    ggml_tensor* x = b.leaf("w_x", {4, 1});
    ggml_tensor* target = ggml_view_2d(b.context(), state, 4, 1, state->nb[1], state->nb[1]);
    ggml_tensor* scaled = ggml_scale(b.context(), x, 2.0F);
    ggml_tensor* copy = ggml_cpy(b.context(), scaled, target);
    ggml_tensor* output = ggml_sqr(b.context(), state);
    for (ggml_tensor* node : {target, scaled, copy, output}) b.run(node);
    const Graph graph = functionalize(b.trace(output, kTokens));
    const Value& set = only_op(graph, GGML_OP_SET);
    EXPECT_EQ(set.op_params[0], 16);  // nb1
    EXPECT_EQ(set.op_params[3], 16);  // offset
    EXPECT_EQ(graph[set.src[0]].kind, ValueKind::zeros);
    EXPECT_EQ(only_op(graph, GGML_OP_SQR).src[0], static_cast<ValueId>(&set - graph.values.data()));
}

TEST(Functionalize, ViewsOfViewsBecomeOneWindowOnTheOwner) {
    TraceBuilder b;
    ggml_tensor* w = b.leaf("w", {8, 3});
    ggml_tensor* part = ggml_view_2d(b.context(), w, 4, 3, w->nb[1], 4 * sizeof(float));
    ggml_tensor* turned = ggml_transpose(b.context(), part);
    ggml_tensor* output = ggml_cont(b.context(), turned);
    for (ggml_tensor* node : {part, turned, output}) b.run(node);
    Trace trace = b.trace(output, {1, 2, 3, 4});
    const Graph graph = functionalize(trace);
    const Value& cont = only_op(graph, GGML_OP_CONT);
    const Value& view = graph[cont.src[0]];
    EXPECT_EQ(view.kind, ValueKind::view);
    EXPECT_EQ(graph[view.src[0]].kind, ValueKind::weight);
    EXPECT_EQ(view.ne, (Shape{3, 4, 1, 1}));
    EXPECT_EQ(view.stride[0], 8);
    EXPECT_EQ(view.stride[1], 1);
    EXPECT_EQ(view.offset, 4);
}

TEST(Functionalize, FindsTheTokensAndDropsWhatTheOutputDoesNotNeed) {
    TraceBuilder b;
    ggml_tensor* table = b.leaf("w_table", {4, 10});
    ggml_tensor* ids = b.leaf("inp", {3}, GGML_TYPE_I32);
    std::memcpy(ids->data, kTokens.data(), sizeof(int32_t) * 3);
    ggml_tensor* output = ggml_get_rows(b.context(), table, ids);
    ggml_tensor* unused = ggml_sqr(b.context(), output);
    for (ggml_tensor* node : {output, unused}) b.run(node);
    const Graph graph = functionalize(b.trace(output, kTokens));
    EXPECT_EQ(graph[only_op(graph, GGML_OP_GET_ROWS).src[1]].kind, ValueKind::tokens);
    for (const Value& value : graph.values) EXPECT_NE(value.op, GGML_OP_SQR);
}

TEST(Functionalize, TwoTensorsOfOneWeightAreOneWeight) {
    TraceBuilder b;
    ggml_tensor* first = b.leaf("w", {4, 3});
    ggml_tensor* second = b.leaf("w", {4, 3});
    ggml_tensor* output = ggml_add(b.context(), first, second);
    b.run(output);
    const Graph graph = functionalize(b.trace(output, kTokens));
    EXPECT_EQ(graph.weights().size(), 1u);
    const Value& add = only_op(graph, GGML_OP_ADD);
    EXPECT_EQ(add.src[0], add.src[1]);
}

}  // namespace
}  // namespace voodoo::graph
