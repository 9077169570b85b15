// Gradient-check cases of MUL_MAT.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

Case plain(const char* name, const Shape& a, const Shape& b_shape) {
    return {"MUL_MAT", name,
            [=](Builder& b) {
                ggml_tensor* left = b.input(a);
                return ggml_mul_mat(b.ctx(), left, b.input(b_shape));
            },
            Tolerance::linear};
}

/// A weight of another type: the reference multiplies by its dequantized values in F32.
Case typed(ggml_type type, const Shape& w, const Shape& x) {
    return {"MUL_MAT", std::string("WeightOfType_") + ggml_type_name(type),
            [=](Builder& b) {
                ggml_tensor* weight = b.weight(type, w);
                return ggml_mul_mat(b.ctx(), weight, b.input(x));
            },
            Tolerance::table, 3e-2};
}

/// Scores of grouped-query attention: K and Q permuted views, 3 query heads on each of 2 key heads.
ggml_tensor* attention_scores(Builder& b) {
    ggml_tensor* k = ggml_permute(b.ctx(), b.input({4, 2, 5, 1}), 0, 2, 1, 3);  // [4, 5, 2]
    ggml_tensor* q = ggml_permute(b.ctx(), b.input({4, 6, 3, 1}), 0, 2, 1, 3);  // [4, 3, 6]
    return ggml_mul_mat(b.ctx(), k, q);
}

/// V kept transposed, as llama.cpp's cache does without flash attention.
ggml_tensor* attention_values(Builder& b) {
    ggml_tensor* v = b.input({5, 8, 1, 1});  // [kv, 2 heads x 4]
    ggml_tensor* heads = ggml_view_3d(b.ctx(), v, 5, 4, 2, v->nb[1], v->nb[1] * 4, 0);
    return ggml_mul_mat(b.ctx(), heads, b.input({5, 3, 6, 1}));
}

/// a with rows apart, b a window of a fused tensor.
ggml_tensor* windows(Builder& b) {
    ggml_tensor* a = b.input({9, 4, 1, 1});
    ggml_tensor* fused = b.input({15, 5, 1, 1});
    ggml_tensor* left = ggml_view_2d(b.ctx(), a, 6, 4, a->nb[1], 2 * sizeof(float));
    return ggml_mul_mat(b.ctx(), left,
                        ggml_view_2d(b.ctx(), fused, 6, 5, fused->nb[1], 7 * sizeof(float)));
}

}  // namespace

std::vector<Case> matmul_cases() {
    std::vector<Case> cases = {
        plain("Plain", {6, 4, 1, 1}, {6, 3, 1, 1}),
        plain("OneColumn", {6, 4, 1, 1}, {6, 1, 1, 1}),
        plain("OneRow", {6, 1, 1, 1}, {6, 5, 1, 1}),
        plain("InnerSizeOne", {1, 4, 1, 1}, {1, 5, 1, 1}),
        plain("Batched", {5, 4, 2, 3}, {5, 3, 2, 3}),
        plain("RepeatedOverDim2", {5, 4, 2, 1}, {5, 3, 6, 1}),
        plain("RepeatedOverDim3", {5, 4, 2, 1}, {5, 3, 2, 3}),
        plain("RepeatedOverBoth", {5, 4, 2, 2}, {5, 3, 4, 6}),
        plain("MatrixOnBatches", {5, 4, 1, 1}, {5, 3, 2, 3}),
        plain("MatrixOnDim3Batches", {5, 4, 1, 2}, {5, 3, 3, 4}),
        typed(GGML_TYPE_F16, {32, 5, 1, 1}, {32, 3, 1, 1}),
        typed(GGML_TYPE_BF16, {32, 5, 1, 1}, {32, 3, 1, 1}),
        typed(GGML_TYPE_Q8_0, {64, 5, 1, 1}, {64, 3, 1, 1}),
        typed(GGML_TYPE_Q4_K, {256, 3, 1, 1}, {256, 2, 1, 1}),
        {"MUL_MAT", "GroupedAttentionScores", attention_scores, Tolerance::linear},
        {"MUL_MAT", "GroupedAttentionValues", attention_values, Tolerance::linear},
        {"MUL_MAT", "Windows", windows, Tolerance::linear},
        {"MUL_MAT", "TransposedRight",
         [](Builder& b) {
             ggml_tensor* left = b.input({5, 4, 1, 1});
             return ggml_mul_mat(
                 b.ctx(), left, ggml_cont(b.ctx(), ggml_transpose(b.ctx(), b.input({3, 5, 1, 1}))));
         },
         Tolerance::linear},
        {"MUL_MAT", "SameValueOnBothSides",
         [](Builder& b) {
             ggml_tensor* x = b.input({6, 4, 1, 1});
             return ggml_mul_mat(b.ctx(), x, x);
         },
         Tolerance::linear},
    };
    Case large = plain("LargeAlongDirections", {96, 80, 1, 1}, {96, 70, 1, 1});
    large.directional = true;
    large.tolerance = Tolerance::smooth;
    cases.push_back(large);
    return cases;
}

}  // namespace voodoo::gradcheck
