// Gradient-check cases of UNARY and GLU.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

/// GELU (tanh form) from ops that ggml's CPU evaluates in F32.
ggml_tensor* exact_gelu(ggml_context* ctx, ggml_tensor* x) {
    constexpr float kC = 0.79788456080286535588F;
    x = ggml_cont(ctx, x);
    ggml_tensor* inner =
        ggml_mul(ctx, x, ggml_scale_bias(ctx, ggml_sqr(ctx, x), kC * 0.044715F, kC));
    return ggml_mul(ctx, ggml_scale(ctx, x, 0.5F),
                    ggml_scale_bias(ctx, ggml_tanh(ctx, inner), 1.0F, 1.0F));
}

ggml_tensor* exact_gelu_quick(ggml_context* ctx, ggml_tensor* x) {
    x = ggml_cont(ctx, x);
    return ggml_mul(ctx, x, ggml_sigmoid(ctx, ggml_scale(ctx, x, 1.702F)));
}

ggml_tensor* activate(Builder& b, ggml_unary_op op, ggml_tensor* x) {
    if (b.exact()) {
        return op == GGML_UNARY_OP_GELU ? exact_gelu(b.ctx(), x) : exact_gelu_quick(b.ctx(), x);
    }
    return ggml_unary(b.ctx(), x, op);
}

void add_unary(std::vector<Case>& cases, ggml_unary_op op, const Avoid& avoid, bool table) {
    const std::string rule = std::string("UNARY:") + ggml_unary_op_name(op);
    const Tolerance tolerance = table ? Tolerance::table : Tolerance::smooth;
    const double forward = table ? 2e-3 : 0.0;
    cases.push_back({rule, "Contiguous",
                     [=](Builder& b) {
                         return activate(b, op, b.input({7, 3, 2, 2}, avoid));
                     },
                     tolerance, forward});
    cases.push_back({rule, "RowsApart",
                     [=](Builder& b) {
                         ggml_tensor* root = b.input({8, 4, 1, 1}, avoid);
                         return activate(
                             b, op,
                             ggml_view_2d(b.ctx(), root, 5, 4, root->nb[1], 2 * sizeof(float)));
                     },
                     tolerance, forward});
    cases.push_back({rule, "SizeOne",
                     [=](Builder& b) {
                         return activate(b, op, b.input({1, 1, 3, 1}, avoid));
                     },
                     tolerance, forward});
}

ggml_tensor* split_glu(Builder& b, ggml_glu_op op, ggml_tensor* gate, ggml_tensor* up) {
    if (b.exact() && op == GGML_GLU_OP_GEGLU) {
        return ggml_mul(b.ctx(), exact_gelu(b.ctx(), gate), up);
    }
    if (b.exact()) {
        return ggml_mul(b.ctx(), exact_gelu_quick(b.ctx(), gate), up);
    }
    return ggml_glu_split(b.ctx(), gate, up, op);
}

/// Both halves in one tensor.
ggml_tensor* joint_glu(Builder& b, ggml_glu_op op, ggml_tensor* x, bool swapped) {
    if (!b.exact()) {
        return ggml_glu(b.ctx(), x, op, swapped);
    }
    const int64_t n = x->ne[0] / 2;
    const auto half = [&](bool second) {
        return ggml_cont(
            b.ctx(), ggml_view_4d(b.ctx(), x, n, x->ne[1], x->ne[2], x->ne[3], x->nb[1], x->nb[2],
                                  x->nb[3], second ? x->nb[0] * static_cast<size_t>(n) : 0));
    };
    return split_glu(b, op, half(swapped), half(!swapped));
}

void add_glu(std::vector<Case>& cases, ggml_glu_op op, const Avoid& avoid) {
    const std::string rule = std::string("GLU:") + ggml_glu_op_name(op);
    const bool table = op == GGML_GLU_OP_GEGLU || op == GGML_GLU_OP_GEGLU_QUICK;
    const Tolerance tolerance = table ? Tolerance::table : Tolerance::smooth;
    const double forward = table ? 2e-3 : 0.0;
    cases.push_back({rule, "Split",
                     [=](Builder& b) {
                         ggml_tensor* gate = b.input({7, 3, 2, 1}, avoid);
                         return split_glu(b, op, gate, b.input({7, 3, 2, 1}));
                     },
                     tolerance, forward});
    cases.push_back({rule, "SplitWithOnlyTheGateWanted",
                     [=](Builder& b) {
                         ggml_tensor* gate = b.input({7, 3, 1, 1}, avoid);
                         ggml_tensor* up = b.constant({7, 3, 1, 1}, [](int64_t i) {
                             return 0.3F * static_cast<float>(i % 5) - 0.5F;
                         });
                         return split_glu(b, op, gate, up);
                     },
                     tolerance, forward});
    cases.push_back({rule, "SplitWithOnlyTheUpPartWanted",
                     [=](Builder& b) {
                         ggml_tensor* gate = b.constant({7, 3, 1, 1}, [](int64_t i) {
                             return 0.4F * static_cast<float>(i % 6) - 0.9F;
                         });
                         return split_glu(b, op, gate, b.input({7, 3, 1, 1}));
                     },
                     tolerance, forward});
    cases.push_back({rule, "Halves",
                     [=](Builder& b) {
                         return joint_glu(b, op, b.input({10, 3, 2, 1}, avoid), false);
                     },
                     tolerance, forward});
    cases.push_back({rule, "SwappedHalves",
                     [=](Builder& b) {
                         return joint_glu(b, op, b.input({10, 4, 1, 1}, avoid), true);
                     },
                     tolerance, forward});
}

using ClampedGlu = ggml_tensor* (*)(ggml_context*, ggml_tensor*, ggml_tensor*);

void add_clamped(std::vector<Case>& cases, const std::string& rule, ClampedGlu op) {
    const Avoid kinks = {{-0.8, 0.8}, 0.07};
    cases.push_back({rule, "Split",
                     [=](Builder& b) {
                         ggml_tensor* gate = b.input({7, 3, 2, 1}, kinks);
                         return op(b.ctx(), gate, b.input({7, 3, 2, 1}, kinks));
                     },
                     Tolerance::smooth});
    cases.push_back({rule, "Halves",
                     [=](Builder& b) {
                         return op(b.ctx(), b.input({12, 3, 2, 1}, kinks), nullptr);
                     },
                     Tolerance::smooth});
}

}  // namespace

std::vector<Case> activation_cases() {
    std::vector<Case> cases;
    const Avoid zero = {{0.0}, 0.07};
    const Avoid three = {{-3.0, 3.0}, 0.07};
    add_unary(cases, GGML_UNARY_OP_ABS, zero, false);
    add_unary(cases, GGML_UNARY_OP_NEG, {}, false);
    add_unary(cases, GGML_UNARY_OP_TANH, {}, false);
    add_unary(cases, GGML_UNARY_OP_ELU, zero, false);
    add_unary(cases, GGML_UNARY_OP_RELU, zero, false);
    add_unary(cases, GGML_UNARY_OP_SIGMOID, {}, false);
    add_unary(cases, GGML_UNARY_OP_GELU, {}, true);
    add_unary(cases, GGML_UNARY_OP_GELU_QUICK, {}, true);
    add_unary(cases, GGML_UNARY_OP_SILU, {}, false);
    add_unary(cases, GGML_UNARY_OP_HARDSWISH, three, false);
    add_unary(cases, GGML_UNARY_OP_HARDSIGMOID, three, false);
    add_unary(cases, GGML_UNARY_OP_EXP, {}, false);
    add_unary(cases, GGML_UNARY_OP_EXPM1, {}, false);
    add_unary(cases, GGML_UNARY_OP_SOFTPLUS, {}, false);
    add_unary(cases, GGML_UNARY_OP_GELU_ERF, {}, false);
    cases.push_back(
        {"UNARY:XIELU", "Plain",
         [zero](Builder& b) {
             return ggml_xielu(b.ctx(), b.input({7, 3, 2, 1}, zero), 0.8F, 1.3F, 0.5F, -1e-6F);
         },
         Tolerance::smooth});
    cases.push_back({"UNARY:XIELU", "WideEps",
                     [](Builder& b) {
                         return ggml_xielu(b.ctx(), b.input({9, 4, 1, 1}, {{0.0, -0.3}, 0.07}),
                                           -0.4F, 0.2F, 1.1F, -0.3F);
                     },
                     Tolerance::smooth});

    add_glu(cases, GGML_GLU_OP_REGLU, zero);
    add_glu(cases, GGML_GLU_OP_GEGLU, {});
    add_glu(cases, GGML_GLU_OP_SWIGLU, {});
    add_glu(cases, GGML_GLU_OP_GEGLU_ERF, {});
    add_glu(cases, GGML_GLU_OP_GEGLU_QUICK, {});
    add_clamped(cases, "GLU:SWIGLU_OAI", [](ggml_context* ctx, ggml_tensor* a, ggml_tensor* up) {
        return ggml_swiglu_oai(ctx, a, up, 1.702F, 0.8F);
    });
    add_clamped(cases, "GLU:SWIGLU_CLAMP", [](ggml_context* ctx, ggml_tensor* a, ggml_tensor* up) {
        return ggml_swiglu_clamp(ctx, a, up, 0.8F);
    });
    cases.push_back({"GLU:SWIGLU", "WideRowsAlongDirections",
                     [](Builder& b) {
                         ggml_tensor* gate = b.input({300, 17, 1, 1});
                         return ggml_swiglu_split(b.ctx(), gate, b.input({300, 17, 1, 1}));
                     },
                     Tolerance::smooth, 0.0, true});
    return cases;
}

}  // namespace voodoo::gradcheck
