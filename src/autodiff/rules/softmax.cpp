/// SOFT_MAX over ne0:  y = softmax(s x + slope_h mask), with an optional sink logit z_h per head
/// (dim 2) that takes probability p_z = 1 - sum_ne0 y but has no output.
///   d      = sum_ne0(y out_grad)
///   x_grad = s y (out_grad - d)      (with or without sink, mask and ALiBi)
///   z_grad = -sum of p_z d over the rows of head h
/// Constant: mask (refused if it wants a gradient). Needs: y.
///
/// DIAG_MASK_INF, DIAG_MASK_ZERO  keep x where i0 <= n_past + i1:  x_grad = out_grad there, else 0
/// Checked in tests/autodiff/gradcheck/softmax_cases.cpp
#include "autodiff/kernels.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"
#include "autodiff/rules/simd_rows.h"

namespace voodoo::autodiff::rules {

namespace {

struct SoftMaxParams {
    float scale;
};

/// dst = x_grad; src[0] = y, src[1] = out_grad, both contiguous.
void soft_max_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const float scale = static_cast<const SoftMaxParams*>(userdata)->scale;
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        soft_max_grad_row(dst->ne[0], kernels::f32_row(dst->src[0], r),
                          kernels::f32_row(dst->src[1], r), scale, kernels::f32_row(dst, r));
    }
}

}  // namespace

std::string refuse_soft_max(const ggml_tensor* /*node*/, const Needs& needs) {
    return needs[1] ? "gradient of the mask" : "";
}

Grads soft_max(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_context* ctx = tape.context();
    auto* y = const_cast<ggml_tensor*>(node);  // NOLINT: ggml's builders take non-const sources
    Grads grads{};
    if (needs[0] && tape.options().cpu_custom_ops) {
        ggml_tensor* const args[] = {y, out_grad};
        grads[0] = tape.custom(GGML_TYPE_F32, shape_of(node), args, soft_max_kernel,
                               SoftMaxParams{param_f32(node, 0)});
    } else if (needs[0]) {
        // max_bias only shifts the logits by a constant, so the node gets 0 (it asserts that).
        grads[0] = ggml_soft_max_ext_back(ctx, out_grad, y, param_f32(node, 0), 0.0F);
    }
    if (needs[2]) {
        ggml_tensor* d = ggml_sum_rows(ctx, ggml_mul(ctx, y, out_grad));
        ggml_tensor* minus_sink = ggml_scale_bias(ctx, ggml_sum_rows(ctx, y), 1.0F, -1.0F);
        ggml_tensor* per_row = ggml_mul(ctx, minus_sink, d);
        ggml_tensor* per_head = tape.reduce_to(per_row, {1, 1, node->ne[2], 1});
        grads[2] = tape.reshape(per_head, shape_of(node->src[2]));
    }
    return grads;
}

Grads diag_mask(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                const Needs& /*needs*/) {
    return {ggml_diag_mask_zero(tape.context(), out_grad, param_i32(node, 0))};
}

}  // namespace voodoo::autodiff::rules
