/// Binary and simple elementwise ops. src1 of the binary ops repeats over any dims; its gradient
/// is summed back ("reduce").
///
/// ADD   y = a + b       a_grad = out_grad        b_grad = reduce(out_grad)
/// SUB   y = a - b       a_grad = out_grad        b_grad = -reduce(out_grad)
/// MUL   y = a b         a_grad = out_grad b      b_grad = reduce(out_grad a)
/// DIV   y = a / b       a_grad = out_grad / b    b_grad = -reduce(out_grad a / b) / b
/// ADD1  y = a + b[0]    a_grad = out_grad        b_grad = sum(out_grad)
///
/// SCALE y = s a + c     a_grad = s out_grad
/// SQR   y = a^2         a_grad = 2 a out_grad
/// SQRT  y = sqrt(a)     a_grad = out_grad / (2 y)
/// LOG   y = log(a)      a_grad = out_grad / a
/// SIN   y = sin(a)      a_grad = out_grad cos(a)
/// COS   y = cos(a)      a_grad = -out_grad sin(a)
/// CLAMP y = min(max(a, lo), hi)              a_grad = out_grad [lo < a < hi]
/// LEAKY_RELU y = a > 0 ? a : s a             a_grad = out_grad (a > 0 ? 1 : s)
/// Needs: a, b. Checked in tests/autodiff/gradcheck/elementwise_cases.cpp
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

/// src[i] in the form that ggml's binary ops take on the right: F32, any strides.
ggml_tensor* operand(Tape& tape, const ggml_tensor* node, int i) {
    ggml_tensor* x = node->src[i];
    return x->type == GGML_TYPE_F32 ? x : tape.contiguous_f32(x);
}

}  // namespace

Grads add(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Grads grads{};
    if (needs[0]) {
        grads[0] = out_grad;
    }
    if (needs[1]) {
        grads[1] = tape.reduce_to(out_grad, shape_of(node->src[1]));
    }
    return grads;
}

Grads sub(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Grads grads{};
    if (needs[0]) {
        grads[0] = out_grad;
    }
    if (needs[1]) {
        grads[1] = ggml_neg(tape.context(), tape.reduce_to(out_grad, shape_of(node->src[1])));
    }
    return grads;
}

Grads mul(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Grads grads{};
    if (needs[0]) {
        grads[0] = ggml_mul(tape.context(), out_grad, operand(tape, node, 1));
    }
    if (needs[1]) {
        ggml_tensor* full = ggml_mul(tape.context(), out_grad, operand(tape, node, 0));
        grads[1] = tape.reduce_to(full, shape_of(node->src[1]));
    }
    return grads;
}

Grads div(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_context* ctx = tape.context();
    ggml_tensor* b = operand(tape, node, 1);
    Grads grads{};
    if (needs[0]) {
        grads[0] = ggml_div(ctx, out_grad, b);
    }
    if (needs[1]) {
        // y recomputed from a and b, so that a strided or reused output can't matter
        ggml_tensor* a_over_b = ggml_div(ctx, ggml_mul(ctx, out_grad, operand(tape, node, 0)), b);
        ggml_tensor* summed = tape.reduce_to(a_over_b, shape_of(b));
        grads[1] = ggml_neg(ctx, ggml_div(ctx, summed, b));
    }
    return grads;
}

/// ADD with a scalar src1, which broadcasts like any other.
Grads add1(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    return add(tape, node, out_grad, needs);
}

Grads scale(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {ggml_scale(tape.context(), out_grad, param_f32(node, 0))};
}

Grads sqr(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    ggml_tensor* product = ggml_mul(tape.context(), out_grad, operand(tape, node, 0));
    return {ggml_scale(tape.context(), product, 2.0F)};
}

Grads sqrt(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    ggml_tensor* root = ggml_sqrt(tape.context(), tape.contiguous_f32(node->src[0]));
    return {ggml_scale(tape.context(), ggml_div(tape.context(), out_grad, root), 0.5F)};
}

Grads log(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {ggml_div(tape.context(), out_grad, operand(tape, node, 0))};
}

Grads sin(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    ggml_tensor* slope = ggml_cos(tape.context(), tape.contiguous_f32(node->src[0]));
    return {ggml_mul(tape.context(), out_grad, slope)};
}

Grads cos(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    ggml_tensor* slope =
        ggml_neg(tape.context(), ggml_sin(tape.context(), tape.contiguous_f32(node->src[0])));
    return {ggml_mul(tape.context(), out_grad, slope)};
}

Grads clamp(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    ggml_context* ctx = tape.context();
    ggml_tensor* x = tape.contiguous_f32(node->src[0]);
    const float low = param_f32(node, 0);
    const float high = param_f32(node, 1);
    ggml_tensor* above_low = ggml_step(ctx, ggml_scale_bias(ctx, x, 1.0F, -low));
    ggml_tensor* below_high = ggml_step(ctx, ggml_scale_bias(ctx, x, -1.0F, high));
    return {ggml_mul(ctx, ggml_mul(ctx, out_grad, above_low), below_high)};
}

Grads leaky_relu(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                 const Needs& /*needs*/) {
    ggml_context* ctx = tape.context();
    const float slope = param_f32(node, 0);
    ggml_tensor* positive = ggml_step(ctx, tape.contiguous_f32(node->src[0]));
    return {ggml_mul(ctx, out_grad, ggml_scale_bias(ctx, positive, 1.0F - slope, slope))};
}

}  // namespace voodoo::autodiff::rules
