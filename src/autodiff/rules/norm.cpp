/// Normalisations over ne0; mean() and sum() are over ne0.
///
/// NORM      y = (x - mean x) / s,  s = sqrt(var x + eps)
///   x_grad = (out_grad - mean(out_grad) - y mean(y out_grad)) / s
/// RMS_NORM  y = x / s,  s = sqrt(mean x^2 + eps)
///   x_grad = (out_grad - y mean(y out_grad)) / s
/// L2_NORM   y = x / s,  s = max(|x|, eps)
///   x_grad = (out_grad - [|x| > eps] y sum(y out_grad)) / s
/// GROUP_NORM is NORM on x reshaped to [ne0 ne1 c, groups], c channels a group; refused where the
/// last group is smaller.
/// Needs: x (the statistics are recomputed: cheaper than keeping them).
/// Checked in tests/autodiff/gradcheck/norm_cases.cpp
#include <cmath>
#include <limits>

#include "autodiff/kernels.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

struct NormParams {
    float eps;
};

/// dst = gradient of NORM; src[0] = x (dense rows), src[1] = out_grad. Statistics in double.
void norm_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const double eps = static_cast<double>(static_cast<const NormParams*>(userdata)->eps);
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    const int64_t n = dst->ne[0];
    const double inv_n = 1.0 / static_cast<double>(n);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* x = kernels::f32_row(dst->src[0], r);
        const float* g = kernels::f32_row(dst->src[1], r);
        float* out = kernels::f32_row(dst, r);
        double sum_x = 0.0;
        double sum_g = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            sum_x += static_cast<double>(x[i]);
            sum_g += static_cast<double>(g[i]);
        }
        const double mean = sum_x * inv_n;
        double sum_cc = 0.0;
        double sum_cg = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            const double c = static_cast<double>(x[i]) - mean;
            sum_cc += c * c;
            sum_cg += c * static_cast<double>(g[i]);
        }
        const double inv_s2 = 1.0 / (sum_cc * inv_n + eps);
        const double inv_s = std::sqrt(inv_s2);
        const double along = sum_cg * inv_n * inv_s2;
        const double mean_g = sum_g * inv_n;
        for (int64_t i = 0; i < n; ++i) {
            const double c = static_cast<double>(x[i]) - mean;
            out[i] = static_cast<float>((static_cast<double>(g[i]) - mean_g - c * along) * inv_s);
        }
    }
}

/// NORM's gradient over ne0. x has F32 dense rows, out_grad is contiguous.
ggml_tensor* norm_grad(Tape& tape, ggml_tensor* x, ggml_tensor* out_grad, float eps) {
    if (tape.options().cpu_custom_ops) {
        ggml_tensor* const args[] = {x, out_grad};
        return tape.custom(GGML_TYPE_F32, shape_of(x), args, norm_kernel, NormParams{eps});
    }
    ggml_context* ctx = tape.context();
    ggml_tensor* centred = ggml_sub(ctx, tape.contiguous_f32(x), ggml_mean(ctx, x));
    ggml_tensor* variance = ggml_mean(ctx, ggml_sqr(ctx, centred));
    ggml_tensor* s = ggml_sqrt(ctx, ggml_scale_bias(ctx, variance, 1.0F, eps));
    ggml_tensor* y = ggml_div(ctx, centred, s);
    ggml_tensor* along_y = ggml_mul(ctx, y, ggml_mean(ctx, ggml_mul(ctx, y, out_grad)));
    ggml_tensor* level = ggml_sub(ctx, out_grad, ggml_mean(ctx, out_grad));
    return ggml_div(ctx, ggml_sub(ctx, level, along_y), s);
}

ggml_tensor* dense_rows(Tape& tape, ggml_tensor* x) {
    return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) ? x : tape.contiguous_f32(x);
}

/// Channels in each group; ggml rounds up, so that the last group may be smaller.
int64_t channels_per_group(const ggml_tensor* node) {
    const int64_t n_groups = param_i32(node, 0);
    return (node->ne[2] + n_groups - 1) / n_groups;
}

}  // namespace

Grads norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {norm_grad(tape, dense_rows(tape, node->src[0]), out_grad, param_f32(node, 0))};
}

Grads rms_norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {ggml_rms_norm_back(tape.context(), out_grad, dense_rows(tape, node->src[0]),
                               param_f32(node, 0))};
}

std::string refuse_group_norm(const ggml_tensor* node, const Needs& /*needs*/) {
    return node->ne[2] % channels_per_group(node) == 0 ? ""
                                                       : "channels do not divide into equal groups";
}

Grads group_norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                 const Needs& /*needs*/) {
    const int64_t channels = channels_per_group(node);
    const Shape grouped = {node->ne[0] * node->ne[1] * channels, node->ne[2] / channels,
                           node->ne[3], 1};
    ggml_tensor* x = tape.reshape(tape.contiguous_f32(node->src[0]), grouped);
    ggml_tensor* grad = norm_grad(tape, x, tape.reshape(out_grad, grouped), param_f32(node, 1));
    return {tape.reshape(grad, shape_of(node))};
}

Grads l2_norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    ggml_context* ctx = tape.context();
    const float eps = param_f32(node, 0);
    ggml_tensor* x = tape.contiguous_f32(node->src[0]);
    ggml_tensor* length = ggml_sqrt(ctx, ggml_sum_rows(ctx, ggml_sqr(ctx, x)));
    ggml_tensor* s = ggml_clamp(ctx, length, eps, std::numeric_limits<float>::infinity());
    ggml_tensor* free = ggml_step(ctx, ggml_scale_bias(ctx, length, 1.0F, -eps));
    ggml_tensor* y = ggml_div(ctx, x, s);
    ggml_tensor* along = ggml_mul(ctx, ggml_sum_rows(ctx, ggml_mul(ctx, y, out_grad)), free);
    return {ggml_div(ctx, ggml_sub(ctx, out_grad, ggml_mul(ctx, y, along)), s)};
}

}  // namespace voodoo::autodiff::rules
