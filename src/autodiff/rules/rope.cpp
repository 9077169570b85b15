/// ROPE (all modes): y = R x, R a rotation of pairs times the YaRN magnitude m, identity on the
/// channels left alone.
///   x_grad = R^T out_grad: the same node with the sine negated, which is ggml's ROPE_BACK with
///   the same op_params (mode, sections, offset, YaRN), positions and frequency factors.
/// ROPE_BACK itself: x_grad = R out_grad.
/// Constant: positions, frequency factors (refused if they want a gradient). Needs: nothing.
/// Checked in tests/autodiff/gradcheck/rope_cases.cpp
#include <cstring>

#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

std::string refuse_rope(const ggml_tensor* node, const Needs& needs) {
    if (needs[2]) {
        return "gradient of the frequency factors";
    }
    return node->type == GGML_TYPE_F32 ? "" : "output is not F32";
}

Grads rope(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    // Copying op_params whole keeps what the builder functions have no argument for (the channel
    // offset).
    ggml_tensor* x_grad = ggml_dup_tensor(tape.context(), out_grad);
    std::memcpy(x_grad->op_params, node->op_params, sizeof(node->op_params));
    x_grad->op = node->op == GGML_OP_ROPE ? GGML_OP_ROPE_BACK : GGML_OP_ROPE;
    x_grad->src[0] = out_grad;
    x_grad->src[1] = node->src[1];
    x_grad->src[2] = node->src[2];
    return {x_grad};
}

}  // namespace voodoo::autodiff::rules
