/// MUL_MAT  y[m, n, b2, b3] = sum_k a[k, m, b2 / r2, b3 / r3] b[k, n, b2, b3]
/// (a repeats r2, r3 times over the outer dims, as keys do in GQA)
///   b_grad = mul_mat(a^T, out_grad)
///   a_grad = mul_mat(b^T, out_grad^T), summed over the r2 r3 repeats
///
/// Both are ggml_mul_mat on transposed copies (never out_prod, which is several times slower on
/// the CPU). The sum over repeats costs nothing: the r repeats follow n in memory, so b and
/// out_grad are reshaped to [., n r] first.
/// a may be a weight of any type: the transposed_weight hook is asked first, else a is
/// dequantized to F32.
/// Needs: a, b. Checked in tests/autodiff/gradcheck/matmul_cases.cpp
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

/// Moves the repeats of a into dim 1: [., n, b2, b3] -> [., n r2, a2, b3], or [., n r2 r3, 1, 1]
/// where a2 = 1.
ggml_tensor* fold_repeats(Tape& tape, ggml_tensor* x, const ggml_tensor* a) {
    const int64_t r2 = x->ne[2] / a->ne[2];
    const int64_t r3 = x->ne[3] / a->ne[3];
    if (r2 == 1 && r3 == 1) {
        return x;
    }
    ggml_tensor* dense = tape.contiguous_f32(x);
    if (a->ne[2] == 1) {
        return tape.reshape(dense, {x->ne[0], x->ne[1] * r2 * r3, 1, a->ne[3]});
    }
    return tape.reshape(dense, {x->ne[0], x->ne[1] * r2, a->ne[2], x->ne[3]});
}

ggml_tensor* left_grad(Tape& tape, ggml_tensor* a, ggml_tensor* b, ggml_tensor* out_grad) {
    ggml_tensor* b_folded = fold_repeats(tape, b, a);
    ggml_tensor* grad_folded = fold_repeats(tape, out_grad, a);
    ggml_tensor* b_turned = tape.transpose_for_weight_grad(b_folded);
    ggml_tensor* grad_turned = tape.transpose_for_matmul(grad_folded);
    ggml_tensor* product = ggml_mul_mat(tape.context(), b_turned, grad_turned);
    if (product->ne[3] == a->ne[3]) {
        return product;
    }
    // a2 > 1 and r3 > 1: the repeats of dim 3 are still apart. Index b3 = a3 r3 + j.
    const int64_t n = product->ne[0] * product->ne[1] * product->ne[2];
    const int64_t r3 = product->ne[3] / a->ne[3];
    ggml_tensor* summed =
        tape.reduce_to(tape.reshape(product, {n, r3, a->ne[3], 1}), {n, 1, a->ne[3], 1});
    return tape.reshape(summed, shape_of(a));
}

}  // namespace

Grads mul_mat(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_tensor* a = node->src[0];
    ggml_tensor* b = node->src[1];
    Grads grads{};
    if (needs[0]) {
        grads[0] = left_grad(tape, a, b, out_grad);
    }
    if (needs[1]) {
        grads[1] = ggml_mul_mat(tape.context(), tape.transposed_weight(a), out_grad);
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
