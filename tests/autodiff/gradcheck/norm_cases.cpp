// Gradient-check cases of the normalisations.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

using NormOp = ggml_tensor* (*)(ggml_context*, ggml_tensor*);

void add_norm(std::vector<Case>& cases, const std::string& rule, NormOp op) {
    cases.push_back({rule, "Plain", [=](Builder& b) {
                         return op(b.ctx(), b.input({9, 3, 2, 2}));
                     }});
    cases.push_back({rule, "RowsApart", [=](Builder& b) {
                         ggml_tensor* root = b.input({12, 4, 1, 1});
                         return op(b.ctx(), ggml_view_3d(b.ctx(), root, 5, 2, 4, 6 * sizeof(float),
                                                         root->nb[1], 0));
                     }});
    cases.push_back(
        {rule, "PermutedHeads", [=](Builder& b) {
             return op(b.ctx(), ggml_permute(b.ctx(), b.input({6, 3, 4, 1}), 0, 2, 1, 3));
         }});
    cases.push_back({rule, "WithWeightAndBias", [=](Builder& b) {
                         ggml_tensor* y = op(b.ctx(), b.input({8, 5, 1, 1}));
                         y = ggml_mul(b.ctx(), y, b.input({8, 1, 1, 1}));
                         return ggml_add(b.ctx(), y, b.input({8, 1, 1, 1}));
                     }});
    cases.push_back({rule, "WideAlongDirections",
                     [=](Builder& b) {
                         return op(b.ctx(), b.input({300, 7, 1, 1}));
                     },
                     Tolerance::smooth, 0.0, true});
}

}  // namespace

std::vector<Case> norm_cases() {
    std::vector<Case> cases;
    add_norm(cases, "NORM",
             [](ggml_context* ctx, ggml_tensor* x) { return ggml_norm(ctx, x, 1e-5F); });
    add_norm(cases, "RMS_NORM",
             [](ggml_context* ctx, ggml_tensor* x) { return ggml_rms_norm(ctx, x, 1e-5F); });
    add_norm(cases, "L2_NORM",
             [](ggml_context* ctx, ggml_tensor* x) { return ggml_l2_norm(ctx, x, 1e-6F); });
    cases.push_back({"NORM", "LargeEps", [](Builder& b) {
                         return ggml_norm(b.ctx(), b.input({7, 4, 1, 1}), 0.5F);
                     }});
    cases.push_back({"RMS_NORM", "LargeEps", [](Builder& b) {
                         return ggml_rms_norm(b.ctx(), b.input({7, 4, 1, 1}), 0.5F);
                     }});
    cases.push_back({"RMS_NORM", "RowsOfOne", [](Builder& b) {
                         return ggml_rms_norm(b.ctx(), b.input({1, 5, 1, 1}, {{0.0}, 0.1}), 0.5F);
                     }});
    cases.push_back({"L2_NORM", "BelowEps",
                     [](Builder& b) {
                         return ggml_l2_norm(b.ctx(), b.input({5, 4, 1, 1}), 100.0F);
                     },
                     Tolerance::linear});
    cases.push_back({"GROUP_NORM", "TwoGroups", [](Builder& b) {
                         return ggml_group_norm(b.ctx(), b.input({3, 2, 6, 2}), 2, 1e-5F);
                     }});
    cases.push_back({"GROUP_NORM", "OneChannelEach", [](Builder& b) {
                         return ggml_group_norm(b.ctx(), b.input({7, 1, 3, 1}), 3, 1e-5F);
                     }});
    return cases;
}

}  // namespace voodoo::gradcheck
