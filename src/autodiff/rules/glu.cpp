/// GLU  y = f(a) h(b), where a, b are src[0], src[1], or the halves of src[0] over ne0 (swapped:
/// b comes first).
///   a_grad = out_grad h(b) f'(a)       b_grad = out_grad f(a) h'(b)
/// REGLU, GEGLU, SWIGLU, GEGLU_ERF, GEGLU_QUICK: h(b) = b, f the UNARY function of that name.
/// SWIGLU_OAI   f(a) = u sigmoid(alpha u), u = min(a, limit);   h(b) = 1 + clamp(b, -limit, limit)
/// SWIGLU_CLAMP f(a) = u sigmoid(u), u = min(a, limit);         h(b) = clamp(b, -limit, limit)
/// Needs: a, b. Checked in tests/autodiff/gradcheck/activation_cases.cpp
#include <algorithm>

#include "autodiff/kernels.h"
#include "autodiff/rules/activations.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"
#include "base/error.h"

namespace voodoo::autodiff::rules {

namespace {

struct GluParams {
    ActivationFn gate;
    /// (alpha, limit) for the clamped forms.
    std::array<float, 4> gate_params;
    /// h(b) = clamp(b, -limit, limit) + shift; limit < 0: no clamp.
    float limit;
    float shift;
    /// Where a and b lie: in the halves of src[0] (b in the first if swapped) or in src[0], src[1].
    bool halves;
    bool swapped;
    bool want_a;
    bool want_b;
};

/// p = (alpha, limit)
ValueAndSlope clamped_silu_at(float x, const std::array<float, 4>& p) {
    const float u = std::min(x, p[1]);
    const float s = 1.0F / (1.0F + std::exp(-p[0] * u));
    return {u * s, x < p[1] ? s * (1.0F + p[0] * u * (1.0F - s)) : 0.0F};
}

void glu_block(const GluParams& p, int64_t n, const float* a, const float* b, const float* g,
               float* a_grad, float* b_grad) {
    float value[kActivationBlock];
    float slope[kActivationBlock];
    activate_block(p.gate, p.gate_params, n, a, value, slope);
    const bool clamps = p.limit >= 0.0F;
    if (p.want_a) {
        for (int64_t i = 0; i < n; ++i) {
            const float h = (clamps ? std::clamp(b[i], -p.limit, p.limit) : b[i]) + p.shift;
            a_grad[i] = g[i] * h * slope[i];
        }
    }
    if (p.want_b) {
        for (int64_t i = 0; i < n; ++i) {
            b_grad[i] = clamps && std::fabs(b[i]) >= p.limit ? 0.0F : g[i] * value[i];
        }
    }
}

/// dst: halves: [2 n, rows] like src[0]; split: the whole a_grad (if wanted), then the whole b_grad
/// (if wanted).
void glu_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const auto& p = *static_cast<const GluParams*>(userdata);
    const ggml_tensor* grad = dst->src[p.halves ? 1 : 2];
    const int64_t n = grad->ne[0];
    const int64_t a_at = p.swapped ? n : 0;
    const kernels::Range rows = kernels::share(ggml_nrows(grad), ith, nth);
    auto* out = static_cast<float*>(dst->data);
    const int64_t b_start = p.want_a ? ggml_nelements(grad) : 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* g = kernels::f32_row(grad, r);
        const float* first = kernels::f32_row(dst->src[0], r);
        const float* a = p.halves ? first + a_at : first;
        const float* b = p.halves ? first + (n - a_at) : kernels::f32_row(dst->src[1], r);
        float* a_grad = p.halves ? out + 2 * n * r + a_at : out + n * r;
        float* b_grad = p.halves ? out + 2 * n * r + (n - a_at) : out + b_start + n * r;
        for (int64_t at = 0; at < n; at += kActivationBlock) {
            glu_block(p, std::min(kActivationBlock, n - at), a + at, b + at, g + at, a_grad + at,
                      b_grad + at);
        }
    }
}

ggml_unary_op gate_op(ggml_glu_op op) {
    switch (op) {
        case GGML_GLU_OP_REGLU:
            return GGML_UNARY_OP_RELU;
        case GGML_GLU_OP_GEGLU:
            return GGML_UNARY_OP_GELU;
        case GGML_GLU_OP_GEGLU_ERF:
            return GGML_UNARY_OP_GELU_ERF;
        case GGML_GLU_OP_GEGLU_QUICK:
            return GGML_UNARY_OP_GELU_QUICK;
        default:
            return GGML_UNARY_OP_SILU;
    }
}

GluParams glu_params(const ggml_tensor* node) {
    const ggml_glu_op op = ggml_get_glu_op(node);
    GluParams p{};
    p.halves = node->src[1] == nullptr;
    p.swapped = p.halves && param_i32(node, 1) != 0;
    p.limit = -1.0F;
    if (op == GGML_GLU_OP_SWIGLU_OAI || op == GGML_GLU_OP_SWIGLU_CLAMP) {
        p.limit = param_f32(node, 3);
        p.gate = clamped_silu_at;
        p.gate_params = {op == GGML_GLU_OP_SWIGLU_OAI ? param_f32(node, 2) : 1.0F, p.limit, 0.0F,
                         0.0F};
        p.shift = op == GGML_GLU_OP_SWIGLU_OAI ? 1.0F : 0.0F;
    } else {
        p.gate = find_activation(gate_op(op));
    }
    return p;
}

ggml_tensor* gate_value(Tape& tape, ggml_unary_op op, ggml_tensor* a) {
    return ggml_unary(tape.context(), a, op);
}

/// The plain form from ggml nodes, or empty if it has none (clamped forms, GEGLU_ERF).
bool plain_glu(Tape& tape, const ggml_tensor* node, ggml_tensor* g, const Needs& needs,
               Grads& grads) {
    const ggml_glu_op op = ggml_get_glu_op(node);
    if (op == GGML_GLU_OP_SWIGLU_OAI || op == GGML_GLU_OP_SWIGLU_CLAMP ||
        op == GGML_GLU_OP_GEGLU_ERF) {
        return false;
    }
    ggml_context* ctx = tape.context();
    ggml_tensor* a = node->src[0];
    ggml_tensor* b = node->src[1];
    const bool halves = b == nullptr;
    const bool swapped = halves && param_i32(node, 1) != 0;
    if (halves) {
        const size_t offset = sizeof(float) * static_cast<size_t>(node->ne[0]);
        ggml_tensor* x = a;
        a = ggml_view_4d(ctx, x, g->ne[0], g->ne[1], g->ne[2], g->ne[3], x->nb[1], x->nb[2],
                         x->nb[3], swapped ? offset : 0);
        b = ggml_view_4d(ctx, x, g->ne[0], g->ne[1], g->ne[2], g->ne[3], x->nb[1], x->nb[2],
                         x->nb[3], swapped ? 0 : offset);
    }
    a = tape.contiguous_f32(a);
    ggml_tensor* a_grad = nullptr;
    ggml_tensor* b_grad = nullptr;
    if (halves || needs[0]) {
        a_grad = ggml_mul(ctx, ggml_mul(ctx, g, b), slope_nodes(tape, gate_op(op), a, {}));
    }
    if (halves || needs[1]) {
        b_grad = ggml_mul(ctx, g, gate_value(tape, gate_op(op), a));
    }
    if (halves) {
        grads[0] =
            swapped ? ggml_concat(ctx, b_grad, a_grad, 0) : ggml_concat(ctx, a_grad, b_grad, 0);
    } else {
        grads[0] = a_grad;
        grads[1] = b_grad;
    }
    return true;
}

}  // namespace

Grads glu(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Grads grads{};
    if (!tape.options().cpu_custom_ops && plain_glu(tape, node, out_grad, needs, grads)) {
        return grads;
    }
    GluParams p = glu_params(node);
    VOODOO_CHECK(p.gate != nullptr, "[Glu::vjp] no gate function for {}",
                 ggml_glu_op_name(ggml_get_glu_op(node)));
    if (p.halves) {
        p.want_a = p.want_b = true;
        ggml_tensor* const args[] = {node->src[0], out_grad};
        grads[0] = tape.custom(GGML_TYPE_F32, shape_of(node->src[0]), args, glu_kernel, p);
        return grads;
    }
    p.want_a = needs[0];
    p.want_b = needs[1];
    const int64_t n_each = ggml_nelements(out_grad);
    ggml_tensor* const args[] = {node->src[0], node->src[1], out_grad};
    // One node for both, so that the gate is evaluated once; its halves are contiguous views.
    ggml_tensor* both = tape.custom(GGML_TYPE_F32, {n_each, p.want_a && p.want_b ? 2 : 1, 1, 1},
                                    args, glu_kernel, p);
    const auto part = [&](int64_t at) {
        const auto& ne = out_grad->ne;
        const auto& nb = out_grad->nb;
        return ggml_view_4d(tape.context(), both, ne[0], ne[1], ne[2], ne[3], nb[1], nb[2], nb[3],
                            sizeof(float) * static_cast<size_t>(at * n_each));
    };
    if (p.want_a) {
        grads[0] = part(0);
    }
    if (p.want_b) {
        grads[1] = part(p.want_a ? 1 : 0);
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
