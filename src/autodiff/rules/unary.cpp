/// UNARY y = f(x), elementwise:  x_grad = out_grad f'(x). Each f' stands in activations.cpp.
/// GELU and GELU_QUICK: f' of the exact function, though ggml's CPU forward reads an F16 table.
/// Needs: x (TANH, SIGMOID, EXP: y).
/// SGN, STEP, FLOOR, CEIL, ROUND, TRUNC are piecewise constant: the registry stops the gradient.
/// Checked in tests/autodiff/gradcheck/activation_cases.cpp
#include <algorithm>

#include "autodiff/kernels.h"
#include "autodiff/rules/activations.h"
#include "autodiff/rules/rules.h"
#include "base/error.h"

namespace voodoo::autodiff::rules {

namespace {

struct SlopeParams {
    ActivationFn activation;
    std::array<float, 4> params;
};

/// dst = src[1] f'(src[0]); src[0] has dense rows.
void slope_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const auto& [activation, params] = *static_cast<const SlopeParams*>(userdata);
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    float value[kActivationBlock];
    float slope[kActivationBlock];
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* x = kernels::f32_row(dst->src[0], r);
        const float* g = kernels::f32_row(dst->src[1], r);
        float* out = kernels::f32_row(dst, r);
        for (int64_t at = 0; at < dst->ne[0]; at += kActivationBlock) {
            const int64_t n = std::min(kActivationBlock, dst->ne[0] - at);
            activate_block(activation, params, n, x + at, value, slope);
            for (int64_t i = 0; i < n; ++i) {
                out[at + i] = g[at + i] * slope[i];
            }
        }
    }
}

struct FromOutputParams {
    SlopeFromOutputFn slope;
};

/// dst = src[1] f'(x) with f' given by the output src[0] (dense rows).
void from_output_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const SlopeFromOutputFn slope = static_cast<const FromOutputParams*>(userdata)->slope;
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* y = kernels::f32_row(dst->src[0], r);
        const float* g = kernels::f32_row(dst->src[1], r);
        float* out = kernels::f32_row(dst, r);
        for (int64_t i = 0; i < dst->ne[0]; ++i) {
            out[i] = g[i] * slope(y[i]);
        }
    }
}

}  // namespace

Grads unary(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    const ggml_unary_op op = ggml_get_unary_op(node);
    ggml_tensor* x = node->src[0];
    const std::array<float, 4> params = activation_params(node);
    if (!tape.options().cpu_custom_ops) {
        if (ggml_tensor* slope = slope_nodes(tape, op, tape.contiguous_f32(x), params)) {
            return {ggml_mul(tape.context(), out_grad, slope)};
        }
    }
    const SlopeFromOutputFn from_output = find_slope_from_output(op);
    if (from_output != nullptr && node->type == GGML_TYPE_F32) {
        auto* y = const_cast<ggml_tensor*>(node);  // NOLINT: ggml's builders take non-const sources
        ggml_tensor* const args[] = {y, out_grad};
        return {tape.custom(GGML_TYPE_F32, shape_of(node), args, from_output_kernel,
                            FromOutputParams{from_output})};
    }
    if (x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float)) {
        x = tape.contiguous_f32(x);
    }
    const ActivationFn activation = find_activation(op);
    VOODOO_CHECK(activation != nullptr, "[Unary::vjp] no activation for {}",
                 ggml_unary_op_name(op));
    ggml_tensor* const args[] = {x, out_grad};
    return {tape.custom(GGML_TYPE_F32, shape_of(node), args, slope_kernel,
                        SlopeParams{activation, params})};
}

}  // namespace voodoo::autodiff::rules
