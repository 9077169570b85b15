// Activation functions and their derivatives.
#include "autodiff/rules/activations.h"

#include "autodiff/rules/params.h"
#include "autodiff/rules/simd_rows.h"

namespace voodoo::autodiff::rules {

namespace {

using Params = std::array<float, 4>;

// 0.5 x (1 + tanh(c x (1 + a x^2))), the constants ggml uses.
constexpr float kGeluA = 0.044715F;
constexpr float kGeluC = 0.79788456080286535588F;
constexpr float kGeluQuick = 1.702F;
constexpr float kInvSqrt2 = 0.70710678118654752440F;
constexpr float kInvSqrt2Pi = 0.39894228040143267794F;

float sigmoid(float x) {
    return 1.0F / (1.0F + std::exp(-x));
}

ValueAndSlope abs_at(float x, const Params& /*p*/) {
    return {std::fabs(x), x > 0.0F ? 1.0F : (x < 0.0F ? -1.0F : 0.0F)};
}
ValueAndSlope neg_at(float x, const Params& /*p*/) {
    return {-x, -1.0F};
}
ValueAndSlope tanh_at(float x, const Params& /*p*/) {
    const float t = std::tanh(x);
    return {t, 1.0F - t * t};
}
ValueAndSlope elu_at(float x, const Params& /*p*/) {
    return x > 0.0F ? ValueAndSlope{x, 1.0F} : ValueAndSlope{std::expm1(x), std::exp(x)};
}
ValueAndSlope relu_at(float x, const Params& /*p*/) {
    return x > 0.0F ? ValueAndSlope{x, 1.0F} : ValueAndSlope{0.0F, 0.0F};
}
ValueAndSlope sigmoid_at(float x, const Params& /*p*/) {
    const float s = sigmoid(x);
    return {s, s * (1.0F - s)};
}
ValueAndSlope gelu_at(float x, const Params& /*p*/) {
    const float t = std::tanh(kGeluC * x * (1.0F + kGeluA * x * x));
    const float inner_slope = kGeluC * (1.0F + 3.0F * kGeluA * x * x);
    return {0.5F * x * (1.0F + t), 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * inner_slope};
}
ValueAndSlope gelu_quick_at(float x, const Params& /*p*/) {
    const float s = sigmoid(kGeluQuick * x);
    return {x * s, s * (1.0F + kGeluQuick * x * (1.0F - s))};
}
ValueAndSlope silu_at(float x, const Params& /*p*/) {
    const float s = sigmoid(x);
    return {x * s, s * (1.0F + x * (1.0F - s))};
}
ValueAndSlope hardswish_at(float x, const Params& /*p*/) {
    if (x <= -3.0F) {
        return {0.0F, 0.0F};
    }
    return x >= 3.0F ? ValueAndSlope{x, 1.0F}
                     : ValueAndSlope{x * (x + 3.0F) / 6.0F, (2.0F * x + 3.0F) / 6.0F};
}
ValueAndSlope hardsigmoid_at(float x, const Params& /*p*/) {
    if (x <= -3.0F || x >= 3.0F) {
        return {x >= 3.0F ? 1.0F : 0.0F, 0.0F};
    }
    return {(x + 3.0F) / 6.0F, 1.0F / 6.0F};
}
ValueAndSlope exp_at(float x, const Params& /*p*/) {
    const float e = std::exp(x);
    return {e, e};
}
ValueAndSlope expm1_at(float x, const Params& /*p*/) {
    return {std::expm1(x), std::exp(x)};
}
ValueAndSlope softplus_at(float x, const Params& /*p*/) {
    return x > 20.0F ? ValueAndSlope{x, 1.0F} : ValueAndSlope{std::log1p(std::exp(x)), sigmoid(x)};
}
ValueAndSlope gelu_erf_at(float x, const Params& /*p*/) {
    const float cdf = 0.5F * (1.0F + std::erf(x * kInvSqrt2));
    return {x * cdf, cdf + x * kInvSqrt2Pi * std::exp(-0.5F * x * x)};
}
/// p = (alpha_n, alpha_p, beta, eps): x > 0 ? alpha_p x^2 + beta x : alpha_n (expm1(min(x, eps)) -
/// x) + beta x
ValueAndSlope xielu_at(float x, const Params& p) {
    const auto [alpha_n, alpha_p, beta, eps] = p;
    if (x > 0.0F) {
        return {(alpha_p * x + beta) * x, 2.0F * alpha_p * x + beta};
    }
    const float exp_slope = x < eps ? std::exp(x) : 0.0F;
    return {alpha_n * (std::expm1(std::fmin(x, eps)) - x) + beta * x,
            alpha_n * (exp_slope - 1.0F) + beta};
}

/// Short names for the node builders below; every operand is contiguous F32 of one shape.
struct Nodes {
    ggml_context* ctx;
    ggml_tensor* add(ggml_tensor* a, ggml_tensor* b) const { return ggml_add(ctx, a, b); }
    ggml_tensor* mul(ggml_tensor* a, ggml_tensor* b) const { return ggml_mul(ctx, a, b); }
    /// s a + c
    ggml_tensor* affine(ggml_tensor* a, float s, float c) const {
        return ggml_scale_bias(ctx, a, s, c);
    }
    ggml_tensor* step(ggml_tensor* a) const { return ggml_step(ctx, a); }
    /// s(kx) (1 + kx (1 - s(kx)))
    ggml_tensor* gated_sigmoid_slope(ggml_tensor* x, float k) const {
        ggml_tensor* kx = k == 1.0F ? x : ggml_scale(ctx, x, k);
        ggml_tensor* s = ggml_sigmoid(ctx, kx);
        return mul(s, affine(mul(kx, affine(s, -1.0F, 1.0F)), 1.0F, 1.0F));
    }
    ggml_tensor* gelu_slope(ggml_tensor* x) const {
        ggml_tensor* x2 = ggml_sqr(ctx, x);
        ggml_tensor* t = ggml_tanh(ctx, mul(x, affine(x2, kGeluC * kGeluA, kGeluC)));
        ggml_tensor* inner_slope = affine(x2, 1.5F * kGeluC * kGeluA, 0.5F * kGeluC);
        ggml_tensor* bump = mul(mul(x, affine(ggml_sqr(ctx, t), -1.0F, 1.0F)), inner_slope);
        return add(affine(t, 0.5F, 0.5F), bump);
    }
    /// [|x| < 3]
    ggml_tensor* inside_three(ggml_tensor* x) const {
        return step(affine(ggml_abs(ctx, x), -1.0F, 3.0F));
    }
    /// exp(x) where x <= 0, else 1
    ggml_tensor* exp_of_negative(ggml_tensor* x) const {
        return ggml_exp(ctx, ggml_neg(ctx, ggml_relu(ctx, ggml_neg(ctx, x))));
    }
    ggml_tensor* xielu_slope(ggml_tensor* x, const Params& p) const {
        const auto [alpha_n, alpha_p, beta, eps] = p;
        ggml_tensor* positive = step(x);
        ggml_tensor* below_eps = step(affine(x, -1.0F, eps));
        ggml_tensor* left = affine(mul(exp_of_negative(x), below_eps), alpha_n, beta - alpha_n);
        ggml_tensor* right = affine(x, 2.0F * alpha_p, beta);
        return add(mul(positive, right), mul(affine(positive, -1.0F, 1.0F), left));
    }
};

}  // namespace

ActivationFn find_activation(ggml_unary_op op) {
    switch (op) {
        case GGML_UNARY_OP_ABS:
            return abs_at;
        case GGML_UNARY_OP_NEG:
            return neg_at;
        case GGML_UNARY_OP_TANH:
            return tanh_at;
        case GGML_UNARY_OP_ELU:
            return elu_at;
        case GGML_UNARY_OP_RELU:
            return relu_at;
        case GGML_UNARY_OP_SIGMOID:
            return sigmoid_at;
        case GGML_UNARY_OP_GELU:
            return gelu_at;
        case GGML_UNARY_OP_GELU_QUICK:
            return gelu_quick_at;
        case GGML_UNARY_OP_SILU:
            return silu_at;
        case GGML_UNARY_OP_HARDSWISH:
            return hardswish_at;
        case GGML_UNARY_OP_HARDSIGMOID:
            return hardsigmoid_at;
        case GGML_UNARY_OP_EXP:
            return exp_at;
        case GGML_UNARY_OP_EXPM1:
            return expm1_at;
        case GGML_UNARY_OP_SOFTPLUS:
            return softplus_at;
        case GGML_UNARY_OP_GELU_ERF:
            return gelu_erf_at;
        case GGML_UNARY_OP_XIELU:
            return xielu_at;
        default:
            return nullptr;
    }
}

SlopeFromOutputFn find_slope_from_output(ggml_unary_op op) {
    switch (op) {
        case GGML_UNARY_OP_TANH:
            return [](float y) { return 1.0F - y * y; };
        case GGML_UNARY_OP_SIGMOID:
            return [](float y) { return y * (1.0F - y); };
        case GGML_UNARY_OP_EXP:
            return [](float y) { return y; };
        default:
            return nullptr;
    }
}

void activate_block(ActivationFn activation, const std::array<float, 4>& params, int64_t n,
                    const float* x, float* value, float* slope) {
    if (activation == silu_at) {
        sigmoid_gate_row(n, x, {1.0F, 0.0F}, value, slope);
    } else if (activation == gelu_quick_at) {
        sigmoid_gate_row(n, x, {kGeluQuick, 0.0F}, value, slope);
    } else if (activation == gelu_at) {
        sigmoid_gate_row(n, x, {2.0F * kGeluC, 2.0F * kGeluC * kGeluA}, value, slope);
    } else {
        for (int64_t i = 0; i < n; ++i) {
            const ValueAndSlope at = activation(x[i], params);
            value[i] = at.value;
            slope[i] = at.slope;
        }
    }
}

std::array<float, 4> activation_params(const ggml_tensor* node) {
    return {param_f32(node, 1), param_f32(node, 2), param_f32(node, 3), param_f32(node, 4)};
}

ggml_tensor* slope_nodes(Tape& tape, ggml_unary_op op, ggml_tensor* x,
                         const std::array<float, 4>& params) {
    ggml_context* ctx = tape.context();
    const Nodes n{ctx};
    switch (op) {
        case GGML_UNARY_OP_ABS:
            return ggml_sgn(ctx, x);
        case GGML_UNARY_OP_NEG:
            return ggml_fill(ctx, x, -1.0F);
        case GGML_UNARY_OP_TANH:
            return n.affine(ggml_sqr(ctx, ggml_tanh(ctx, x)), -1.0F, 1.0F);
        case GGML_UNARY_OP_ELU:
            return n.exp_of_negative(x);
        case GGML_UNARY_OP_RELU:
            return ggml_step(ctx, x);
        case GGML_UNARY_OP_SIGMOID: {
            ggml_tensor* s = ggml_sigmoid(ctx, x);
            return n.mul(s, n.affine(s, -1.0F, 1.0F));
        }
        case GGML_UNARY_OP_GELU:
            return n.gelu_slope(x);
        case GGML_UNARY_OP_GELU_QUICK:
            return n.gated_sigmoid_slope(x, kGeluQuick);
        case GGML_UNARY_OP_SILU:
            return n.gated_sigmoid_slope(x, 1.0F);
        case GGML_UNARY_OP_HARDSWISH:
            return n.add(ggml_hardsigmoid(ctx, x),
                         ggml_scale(ctx, n.mul(x, n.inside_three(x)), 1.0F / 6.0F));
        case GGML_UNARY_OP_HARDSIGMOID:
            return ggml_scale(ctx, n.inside_three(x), 1.0F / 6.0F);
        case GGML_UNARY_OP_EXP:
        case GGML_UNARY_OP_EXPM1:
            return ggml_exp(ctx, x);
        case GGML_UNARY_OP_SOFTPLUS:
            return ggml_sigmoid(ctx, x);
        case GGML_UNARY_OP_XIELU:
            return n.xielu_slope(x, params);
        default:
            return nullptr;
    }
}

}  // namespace voodoo::autodiff::rules
