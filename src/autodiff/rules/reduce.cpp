/// Sums and repeats.
///
/// SUM      y = sum of all          x_grad = out_grad repeated
/// SUM_ROWS y = sum over ne0        x_grad = out_grad repeated over ne0
/// MEAN     y = mean over ne0       x_grad = out_grad / ne0 repeated over ne0
/// REPEAT   y[i] = x[i mod ne]      x_grad = sum of out_grad over the repeats
/// Checked in tests/autodiff/gradcheck/elementwise_cases.cpp
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

Grads sum(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {tape.repeat_to(out_grad, shape_of(node->src[0]))};
}

Grads sum_rows(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {tape.repeat_to(out_grad, shape_of(node->src[0]))};
}

Grads mean(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    const ggml_tensor* x = node->src[0];
    ggml_tensor* scaled = ggml_scale(tape.context(), out_grad, 1.0F / static_cast<float>(x->ne[0]));
    return {tape.repeat_to(scaled, shape_of(x))};
}

Grads repeat(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {tape.reduce_to(out_grad, shape_of(node->src[0]))};
}

}  // namespace voodoo::autodiff::rules
