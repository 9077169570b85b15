// Gradient-check cases of MUL_MAT_ID and ADD_ID.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

/// ids [n_used, n_tokens] below n_expert: no expert twice for one token, and expert 1 for none.
ggml_tensor* routing(Builder& b, int64_t n_used, int64_t n_tokens, int64_t n_expert) {
    return b.indices_i32({n_used, n_tokens, 1, 1}, [=](int64_t i) {
        const int64_t id = (i % n_used + 2 * (i / n_used)) % (n_expert - 1);
        return id >= 1 ? id + 1 : id;
    });
}

Case routed(const char* name, const Shape& weights, const Shape& x, int64_t n_used) {
    return {"MUL_MAT_ID", name,
            [=](Builder& b) {
                ggml_tensor* w = b.input(weights);
                ggml_tensor* activations = b.input(x);
                return ggml_mul_mat_id(b.ctx(), w, activations,
                                       routing(b, n_used, x[2], weights[2]));
            },
            Tolerance::linear};
}

/// The ids as models have them: the first columns of a sorted tensor, so rows are apart.
ggml_tensor* strided_ids(Builder& b) {
    ggml_tensor* w = b.input({6, 5, 4, 1});
    ggml_tensor* x = b.input({6, 1, 3, 1});
    ggml_tensor* order = b.indices_i32({4, 3, 1, 1}, [](int64_t i) { return (i * 3 + i / 4) % 4; });
    return ggml_mul_mat_id(b.ctx(), w, x, ggml_view_2d(b.ctx(), order, 2, 3, order->nb[1], 0));
}

/// Gate and up in one tensor: the experts' outputs are windows, the down projection reads one.
ggml_tensor* window_of_fused_rows(Builder& b) {
    ggml_tensor* fused = b.input({14, 2, 3, 1});
    ggml_tensor* w = b.input({6, 5, 4, 1});
    ggml_tensor* x =
        ggml_view_3d(b.ctx(), fused, 6, 2, 3, fused->nb[1], fused->nb[2], 7 * sizeof(float));
    return ggml_mul_mat_id(b.ctx(), w, x, routing(b, 2, 3, 4));
}

/// Both uses add up, each with a routing of its own.
ggml_tensor* same_experts_twice(Builder& b) {
    ggml_tensor* w = b.input({5, 5, 3, 1});
    ggml_tensor* once = ggml_mul_mat_id(b.ctx(), w, b.input({5, 1, 3, 1}), routing(b, 2, 3, 3));
    ggml_tensor* other = b.indices_i32({2, 3, 1, 1}, [](int64_t i) { return (i + 1 + i / 2) % 3; });
    return ggml_mul_mat_id(b.ctx(), w, once, other);
}

ggml_tensor* quantized_experts(Builder& b) {
    ggml_tensor* w = b.weight(GGML_TYPE_Q8_0, {32, 4, 3, 1});
    return ggml_mul_mat_id(b.ctx(), w, b.input({32, 1, 4, 1}), routing(b, 2, 4, 3));
}

ggml_tensor* expert_bias(Builder& b) {
    ggml_tensor* x = b.input({6, 2, 5, 1});
    return ggml_add_id(b.ctx(), x, b.input({6, 4, 1, 1}), routing(b, 2, 5, 4));
}

ggml_tensor* expert_bias_by_strided_ids(Builder& b) {
    ggml_tensor* x = b.input({6, 2, 3, 1});
    ggml_tensor* order = b.indices_i32({4, 3, 1, 1}, [](int64_t i) { return (i * 3 + i / 4) % 4; });
    ggml_tensor* ids = ggml_view_2d(b.ctx(), order, 2, 3, order->nb[1], 0);
    return ggml_add_id(b.ctx(), x, b.input({6, 4, 1, 1}), ids);
}

}  // namespace

std::vector<Case> expert_cases() {
    std::vector<Case> cases = {
        routed("OneRowForAllSlots", {6, 4, 5, 1}, {6, 1, 4, 1}, 3),
        routed("OneRowPerSlot", {6, 4, 5, 1}, {6, 3, 4, 1}, 3),
        routed("RowsForGroupsOfSlots", {6, 4, 5, 1}, {6, 2, 3, 1}, 4),
        routed("OneExpertPerToken", {6, 4, 3, 1}, {6, 1, 7, 1}, 1),
        routed("OneToken", {6, 4, 5, 1}, {6, 1, 1, 1}, 2),
        routed("OneOutput", {6, 1, 3, 1}, {6, 2, 3, 1}, 2),
        routed("InnerSizeOne", {1, 4, 3, 1}, {1, 2, 3, 1}, 2),
        {"MUL_MAT_ID", "StridedIds", strided_ids, Tolerance::linear},
        {"MUL_MAT_ID", "WindowOfFusedRows", window_of_fused_rows, Tolerance::linear},
        {"MUL_MAT_ID", "SameExpertsTwice", same_experts_twice, Tolerance::linear},
        {"MUL_MAT_ID", "QuantizedExperts", quantized_experts, Tolerance::table, 3e-2},
        {"ADD_ID", "Plain", expert_bias, Tolerance::linear},
        {"ADD_ID", "StridedIds", expert_bias_by_strided_ids, Tolerance::linear},
    };
    Case large = routed("LargeAlongDirections", {96, 80, 7, 1}, {96, 1, 40, 1}, 4);
    large.directional = true;
    large.tolerance = Tolerance::smooth;
    cases.push_back(large);
    return cases;
}

}  // namespace voodoo::gradcheck
