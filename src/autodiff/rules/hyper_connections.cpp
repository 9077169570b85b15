/// Hyper-connections: hc residual streams that every block reads, writes and mixes. t is the token,
/// g = out_grad.
///
/// DSV4_HC_PRE   y[i, t] = s sum_h x[i, h, t] w[h, t]
///   x_grad[i, h, t] = s g[i, t] w[h, t]       w_grad[h, t] = s sum_i g[i, t] x[i, h, t]
/// gated form    y[i, t] = s sum_h x[i, h, t] sigmoid(w[i, h, t]), q = sigmoid(w)
///   x_grad = s g q                            w_grad = s g x q (1 - q)
/// DSV4_HC_POST  y[i, d, t] = x[i, t] p[d, t] + sum_s r[i, s, t] c[d, s, t]    (no c: + r[i, d, t])
///   x_grad[i, t] = sum_d g[i, d, t] p[d, t]   p_grad[d, t] = sum_i g[i, d, t] x[i, t]
///   r_grad[i, s, t] = sum_d g[i, d, t] c[d, s, t]
///   c_grad[d, s, t] = sum_i g[i, d, t] r[i, s, t]
/// DSV4_HC_COMB  c[., ., t] = N_s (N_d N_s)^(n - 1) (softmax_d(v) + eps), with
///               v[d, s, t] = mixes[2 hc + d + hc s, t] scale[2] + base[2 hc + d + hc s]
///               and N_a c = c / S, S = eps + sum_a c: a normalization over axis a
///   through N_a: c_grad = (g - sum_a(g N_a c)) / S, the steps in reverse from their kept results
///   through softmax: v_grad = q (g - sum_d(q g)), q = softmax_d(v)
///   mixes_grad = v_grad scale[2]   scale_grad[2] = sum(v_grad mixes)   base_grad = sum_t v_grad
/// Checked in tests/autodiff/gradcheck/hyper_connection_cases.cpp
#include <cmath>
#include <vector>

#include "autodiff/kernels.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

struct CombParams {
    double eps;
    int32_t n_iter;
};

/// One token's matrix c[d + hc s] on its way through the normalizations.
class Combination {
public:
    Combination(int64_t hc, const CombParams& params) : hc_(hc), params_(params) {}

    /// v: hc * hc values. Keeps every step's result.
    void forward(const std::vector<double>& v) {
        softmax_ = v;
        for (int64_t s = 0; s < hc_; ++s) {
            double* row = softmax_.data() + s * hc_;
            const double max = *std::max_element(row, row + hc_);
            double sum = 0.0;
            for (int64_t d = 0; d < hc_; ++d) {
                row[d] = std::exp(row[d] - max);
                sum += row[d];
            }
            for (int64_t d = 0; d < hc_; ++d) {
                row[d] /= sum;
            }
        }
        steps_.clear();
        std::vector<double> c = softmax_;
        for (double& x : c) {
            x += params_.eps;
        }
        normalize(c, hc_, 1);
        for (int32_t i = 1; i < params_.n_iter; ++i) {
            normalize(c, 1, hc_);
            normalize(c, hc_, 1);
        }
    }

    /// Turns the gradient of the result into that of v.
    void backward(std::vector<double>& grad) const {
        for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
            for (int64_t line = 0; line < hc_; ++line) {
                const int64_t first = line * (step->stride == 1 ? hc_ : 1);
                double dot = 0.0;
                for (int64_t i = 0; i < hc_; ++i) {
                    const auto at = static_cast<size_t>(first + i * step->stride);
                    dot += grad[at] * step->result[at];
                }
                for (int64_t i = 0; i < hc_; ++i) {
                    double& g = grad[static_cast<size_t>(first + i * step->stride)];
                    g = (g - dot) / step->sums[static_cast<size_t>(line)];
                }
            }
        }
        for (int64_t s = 0; s < hc_; ++s) {
            const double* q = softmax_.data() + s * hc_;
            double* g = grad.data() + s * hc_;
            double dot = 0.0;
            for (int64_t d = 0; d < hc_; ++d) {
                dot += q[d] * g[d];
            }
            for (int64_t d = 0; d < hc_; ++d) {
                g[d] = q[d] * (g[d] - dot);
            }
        }
    }

private:
    struct Step {
        int64_t stride;
        std::vector<double> sums;  // S of each line
        std::vector<double> result;
    };

    /// Lines of elements `stride` apart, `other` from one line to the next.
    void normalize(std::vector<double>& c, int64_t stride, int64_t other) {
        Step step{stride, {}, {}};
        for (int64_t line = 0; line < hc_; ++line) {
            double sum = params_.eps;
            for (int64_t i = 0; i < hc_; ++i) {
                sum += c[static_cast<size_t>(line * other + i * stride)];
            }
            for (int64_t i = 0; i < hc_; ++i) {
                c[static_cast<size_t>(line * other + i * stride)] /= sum;
            }
            step.sums.push_back(sum);
        }
        step.result = c;
        steps_.push_back(std::move(step));
    }

    int64_t hc_;
    CombParams params_;
    std::vector<double> softmax_;
    std::vector<Step> steps_;
};

float element(const ggml_tensor* t, int64_t i0, int64_t i1) {
    return *reinterpret_cast<const float*>(static_cast<const char*>(t->data) + i0 * t->nb[0] +
                                           i1 * t->nb[1]);
}

/// dst [(2 + hc) hc, T] = v_grad behind 2 hc zeros; src: mixes, scale, base, out_grad.
void comb_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const ggml_tensor* mixes = dst->src[0];
    const ggml_tensor* base = dst->src[2];
    const ggml_tensor* out_grad = dst->src[3];
    const double scale = static_cast<double>(element(dst->src[1], 2, 0));
    const int64_t hc = out_grad->ne[0];
    Combination combination(hc, *static_cast<const CombParams*>(userdata));
    std::vector<double> values(static_cast<size_t>(hc * hc));
    const kernels::Range tokens = kernels::share(dst->ne[1], ith, nth);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        for (int64_t i = 0; i < hc * hc; ++i) {
            values[static_cast<size_t>(i)] =
                static_cast<double>(element(mixes, 2 * hc + i, t)) * scale +
                static_cast<double>(element(base, 2 * hc + i, 0));
        }
        combination.forward(values);
        const float* grad = kernels::f32_row(out_grad, t * hc);
        values.assign(grad, grad + hc * hc);
        combination.backward(values);
        float* out = kernels::f32_row(dst, t);
        std::fill_n(out, 2 * hc, 0.0F);
        for (int64_t i = 0; i < hc * hc; ++i) {
            out[2 * hc + i] = static_cast<float>(values[static_cast<size_t>(i)]);
        }
    }
}

/// [n, T] -> [n, 1, T]
ggml_tensor* one_per_token(Tape& tape, ggml_tensor* x) {
    return tape.reshape(tape.contiguous_f32(x), {x->ne[0], 1, x->ne[1], 1});
}

/// [hc, T] -> [1, hc, T]
ggml_tensor* one_per_stream(Tape& tape, ggml_tensor* x) {
    return tape.reshape(tape.contiguous_f32(x), {1, x->ne[0], x->ne[1], 1});
}

}  // namespace

Grads hc_pre(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_context* ctx = tape.context();
    ggml_tensor* x = tape.contiguous_f32(node->src[0]);
    ggml_tensor* w = tape.contiguous_f32(node->src[1]);
    const bool is_gated = param_i32(node, 1) != 0;
    ggml_tensor* scaled = ggml_scale(ctx, out_grad, param_f32(node, 0));
    ggml_tensor* g = tape.repeat_to(one_per_token(tape, scaled), shape_of(x));
    ggml_tensor* factor = is_gated ? ggml_sigmoid(ctx, w) : one_per_stream(tape, w);
    Grads grads{};
    if (needs[0]) {
        grads[0] = ggml_mul(ctx, g, factor);
    }
    if (needs[1]) {
        ggml_tensor* product = ggml_mul(ctx, g, x);
        if (is_gated) {
            ggml_tensor* slope = ggml_mul(ctx, factor, ggml_scale_bias(ctx, factor, -1.0F, 1.0F));
            grads[1] = ggml_mul(ctx, product, slope);
        } else {
            grads[1] = tape.reshape(ggml_sum_rows(ctx, product), shape_of(w));
        }
    }
    return grads;
}

Grads hc_post(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_context* ctx = tape.context();
    ggml_tensor* x = node->src[0];
    ggml_tensor* post = node->src[2];
    ggml_tensor* comb = node->src[3];
    Grads grads{};
    if (needs[0]) {
        grads[0] = ggml_dsv4_hc_pre(ctx, out_grad, tape.contiguous_f32(post));
    }
    if (needs[1]) {
        grads[1] = comb == nullptr
                       ? out_grad
                       : ggml_mul_mat(ctx, tape.transpose(out_grad), tape.contiguous_f32(comb));
    }
    if (needs[2]) {
        ggml_tensor* product = ggml_mul(ctx, out_grad, one_per_token(tape, x));
        grads[2] = tape.reshape(ggml_sum_rows(ctx, product), shape_of(post));
    }
    if (needs[3]) {
        grads[3] = ggml_mul_mat(ctx, out_grad, tape.contiguous_f32(node->src[1]));
    }
    return grads;
}

Grads hc_comb(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_context* ctx = tape.context();
    ggml_tensor* mixes = node->src[0];
    ggml_tensor* scale = node->src[1];
    ggml_tensor* const args[] = {mixes, scale, node->src[2], out_grad};
    const CombParams params{static_cast<double>(param_f32(node, 0)), param_i32(node, 1)};
    ggml_tensor* v_grad =
        tape.custom(GGML_TYPE_F32, {mixes->ne[0], mixes->ne[1], 1, 1}, args, comb_kernel, params);
    Grads grads{};
    if (needs[0]) {
        ggml_tensor* factor = ggml_view_1d(ctx, scale, 1, 2 * scale->nb[0]);
        grads[0] = ggml_mul(ctx, v_grad, factor);
    }
    if (needs[1]) {
        ggml_tensor* sum = ggml_sum(ctx, ggml_mul(ctx, v_grad, tape.contiguous_f32(mixes)));
        grads[1] = ggml_pad_ext(ctx, sum, 2, static_cast<int>(scale->ne[0]) - 3, 0, 0, 0, 0, 0, 0);
    }
    if (needs[2]) {
        grads[2] = tape.reduce_to(v_grad, shape_of(node->src[2]));
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
