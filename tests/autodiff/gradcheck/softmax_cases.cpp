// Gradient-check cases of SOFT_MAX and the diagonal masks.
#include <cmath>
#include <limits>

#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

/// Causal mask with -inf, as attention has it; soft values elsewhere.
ggml_tensor* causal_mask(Builder& b, int64_t n_kv, int64_t n_rows, int64_t n_past) {
    return b.constant({n_kv, n_rows, 1, 1}, [=](int64_t i) {
        const int64_t key = i % n_kv;
        const int64_t query = i / n_kv;
        return key > query + n_past ? -std::numeric_limits<float>::infinity()
                                    : -0.5F * static_cast<float>(query + n_past - key);
    });
}

ggml_tensor* with_sinks(Builder& b, float scale, float max_bias) {
    ggml_tensor* x = b.input({7, 4, 3, 2});
    ggml_tensor* y = ggml_soft_max_ext(b.ctx(), x, causal_mask(b, 7, 4, 3), scale, max_bias);
    ggml_soft_max_add_sinks(y, b.input({3, 1, 1, 1}));
    return y;
}

}  // namespace

std::vector<Case> softmax_cases() {
    return {
        {"SOFT_MAX", "Plain",
         [](Builder& b) {
             return ggml_soft_max(b.ctx(), b.input({7, 3, 2, 2}));
         },
         Tolerance::smooth},
        {"SOFT_MAX", "Scaled",
         [](Builder& b) {
             return ggml_soft_max_ext(b.ctx(), b.input({7, 3, 2, 1}), nullptr, 0.35F, 0.0F);
         },
         Tolerance::smooth},
        {"SOFT_MAX", "CausalMask",
         [](Builder& b) {
             ggml_tensor* x = b.input({7, 4, 3, 1});
             return ggml_soft_max_ext(b.ctx(), x, causal_mask(b, 7, 4, 3), 0.6F, 0.0F);
         },
         Tolerance::smooth},
        {"SOFT_MAX", "HalfPrecisionMask",
         [](Builder& b) {
             ggml_tensor* x = b.input({7, 4, 3, 1});
             ggml_tensor* mask = ggml_cast(b.ctx(), causal_mask(b, 7, 4, 3), GGML_TYPE_F16);
             return ggml_soft_max_ext(b.ctx(), x, mask, 0.6F, 0.0F);
         },
         Tolerance::smooth},
        {"SOFT_MAX", "AlibiSlopes",
         [](Builder& b) {
             ggml_tensor* x = b.input({7, 4, 6, 1});
             return ggml_soft_max_ext(b.ctx(), x, causal_mask(b, 7, 4, 3), 0.6F, 8.0F);
         },
         Tolerance::smooth},
        {"SOFT_MAX", "Sinks", [](Builder& b) { return with_sinks(b, 0.6F, 0.0F); },
         Tolerance::smooth},
        {"SOFT_MAX", "SinksAndAlibi", [](Builder& b) { return with_sinks(b, 0.6F, 8.0F); },
         Tolerance::smooth},
        {"SOFT_MAX", "WideAlongDirections",
         [](Builder& b) {
             return ggml_soft_max_ext(b.ctx(), b.input({300, 9, 2, 1}), nullptr, 0.8F, 0.0F);
         },
         Tolerance::smooth, 0.0, true},
        {"DIAG_MASK_INF", "UnderSoftmax",
         [](Builder& b) {
             ggml_tensor* x = b.input({6, 4, 2, 1});
             return ggml_soft_max(b.ctx(), ggml_diag_mask_inf(b.ctx(), x, 2));
         },
         Tolerance::smooth},
        {"DIAG_MASK_INF", "UnderExp",
         [](Builder& b) {
             return ggml_exp(b.ctx(), ggml_diag_mask_inf(b.ctx(), b.input({6, 4, 2, 1}), 1));
         },
         Tolerance::smooth},
        {"DIAG_MASK_ZERO", "Plain",
         [](Builder& b) {
             return ggml_diag_mask_zero(b.ctx(), b.input({6, 4, 2, 1}), 1);
         },
         Tolerance::linear},
    };
}

}  // namespace voodoo::gradcheck
