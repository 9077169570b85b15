// Gradient-check cases of the hyper-connection ops: DSV4_HC_PRE, DSV4_HC_POST, DSV4_HC_COMB.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

ggml_tensor* read_streams(Builder& b) {
    ggml_tensor* x = b.input({7, 4, 3, 1});
    return ggml_dsv4_hc_pre(b.ctx(), x, b.input({4, 3, 1, 1}));
}

/// The weights of reading, writing and mixing lie in one tensor.
ggml_tensor* read_with_window(Builder& b) {
    ggml_tensor* x = b.input({7, 4, 3, 1});
    ggml_tensor* mixes = b.input({24, 3, 1, 1});
    ggml_tensor* weights = ggml_view_2d(b.ctx(), mixes, 4, 3, mixes->nb[1], 4 * sizeof(float));
    return ggml_dsv4_hc_pre(b.ctx(), x, weights);
}

ggml_tensor* read_gated(Builder& b) {
    ggml_tensor* x = b.input({7, 4, 3, 1});
    return ggml_dsv4_hc_pre_gated(b.ctx(), x, b.input({7, 4, 3, 1}), 0.7F);
}

ggml_tensor* write_and_mix(Builder& b) {
    ggml_tensor* x = b.input({7, 3, 1, 1});
    ggml_tensor* residual = b.input({7, 4, 3, 1});
    ggml_tensor* post = b.input({4, 3, 1, 1});
    return ggml_dsv4_hc_post(b.ctx(), x, residual, post, b.input({4, 4, 3, 1}));
}

ggml_tensor* write_without_mixing(Builder& b) {
    ggml_tensor* x = b.input({7, 3, 1, 1});
    ggml_tensor* residual = b.input({7, 2, 3, 1});
    return ggml_dsv4_hc_post(b.ctx(), x, residual, b.input({2, 3, 1, 1}), nullptr);
}

Case mixing(const char* name, int n_iter, float eps) {
    Case c{"DSV4_HC_COMB", name, [=](Builder& b) {
               ggml_tensor* mixes = b.input({24, 5, 1, 1});
               ggml_tensor* scale = b.input({3, 1, 1, 1});
               return ggml_dsv4_hc_comb(b.ctx(), mixes, scale, b.input({24, 1, 1, 1}), eps, n_iter);
           }};
    // v is a product of two inputs: below, its effect drowns in the rounding of the forward; above,
    // the softmax saturates.
    c.scales = {1.0, 1.5};
    return c;
}

}  // namespace

std::vector<Case> hyper_connection_cases() {
    return {
        {"DSV4_HC_PRE", "Plain", read_streams, Tolerance::linear},
        {"DSV4_HC_PRE", "WindowOfMixes", read_with_window, Tolerance::linear},
        {"DSV4_HC_PRE", "Gated", read_gated},
        {"DSV4_HC_POST", "Mixed", write_and_mix, Tolerance::linear},
        {"DSV4_HC_POST", "WithoutMixing", write_without_mixing, Tolerance::linear},
        mixing("OneIteration", 1, 1e-3F),
        mixing("ManyIterations", 4, 1e-2F),
    };
}

}  // namespace voodoo::gradcheck
