/// Ops of chunked linear attention and other rearrangements.
///
/// CUMSUM over ne0  y_i = sum_{k <= i} x_k:  x_grad_i = sum_{k >= i} out_grad_k
/// DIAG             y = the matrix with x on its diagonal: x_grad = the diagonal of out_grad
/// SOLVE_TRI        A y = b, A lower triangular [n, n], y and b [columns, n]:
///                  b_grad = A^-T out_grad;  A_grad = -tril(b_grad y^T)
/// ROLL             x_grad = out_grad rolled back
/// SET              y = base, with its window (nb1, nb2, nb3, offset) replaced by x:
///                  base_grad = out_grad with 0 in the window;  x_grad = the window of out_grad
/// Needs: A and y of SOLVE_TRI. Checked in tests/autodiff/gradcheck/recurrent_cases.cpp
#include "autodiff/kernels.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

/// dst = A^-T g; src[0] = A, src[1] = g, both contiguous. A thread takes whole matrices.
void solve_transposed_kernel(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const int64_t n = dst->ne[1];
    const int64_t n_columns = dst->ne[0];
    const kernels::Range matrices = kernels::share(dst->ne[2] * dst->ne[3], ith, nth);
    for (int64_t m = matrices.begin; m < matrices.end; ++m) {
        const float* a = static_cast<const float*>(dst->src[0]->data) + m * n * n;
        const float* g = static_cast<const float*>(dst->src[1]->data) + m * n * n_columns;
        float* x = static_cast<float*>(dst->data) + m * n * n_columns;
        std::copy(g, g + n * n_columns, x);
        for (int64_t i = n - 1; i >= 0; --i) {
            const float inverse = 1.0F / a[i * n + i];
            for (int64_t c = 0; c < n_columns; ++c) {
                x[i * n_columns + c] *= inverse;
            }
            for (int64_t t = 0; t < i; ++t) {
                for (int64_t c = 0; c < n_columns; ++c) {
                    x[t * n_columns + c] -= a[i * n + t] * x[i * n_columns + c];
                }
            }
        }
    }
}

}  // namespace

Grads cumsum(Tape& tape, const ggml_tensor* /*node*/, ggml_tensor* out_grad,
             const Needs& /*needs*/) {
    ggml_context* ctx = tape.context();
    ggml_tensor* before = ggml_sub(ctx, ggml_cumsum(ctx, out_grad), out_grad);
    return {
        ggml_sub(ctx, tape.repeat_to(ggml_sum_rows(ctx, out_grad), shape_of(out_grad)), before)};
}

Grads diag(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    const ggml_tensor* x = node->src[0];
    ggml_tensor* diagonal =
        ggml_view_4d(tape.context(), out_grad, 1, x->ne[0], x->ne[2], x->ne[3],
                     out_grad->nb[1] + out_grad->nb[0], out_grad->nb[2], out_grad->nb[3], 0);
    return {tape.reshape(tape.contiguous_f32(diagonal), shape_of(x))};
}

Grads solve_tri(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_context* ctx = tape.context();
    ggml_tensor* const args[] = {node->src[0], out_grad};
    ggml_tensor* b_grad = tape.custom(GGML_TYPE_F32, shape_of(node), args, solve_transposed_kernel,
                                      kernels::NoParams{});
    Grads grads{};
    if (needs[0]) {
        // [row i, column t] = sum over columns of y[t] b_grad[i]
        ggml_tensor* product = ggml_mul_mat(ctx, const_cast<ggml_tensor*>(node), b_grad);
        grads[0] = ggml_neg(ctx, ggml_tri(ctx, product, GGML_TRI_TYPE_LOWER_DIAG));
    }
    if (needs[1]) {
        grads[1] = b_grad;
    }
    return grads;
}

Grads roll(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {ggml_roll(tape.context(), out_grad, -param_i32(node, 0), -param_i32(node, 1),
                      -param_i32(node, 2), -param_i32(node, 3))};
}

Grads set(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    const ggml_tensor* x = node->src[1];
    const auto bytes = [&](int i) { return static_cast<size_t>(param_i32(node, i)); };
    Grads grads{};
    if (needs[0]) {
        grads[0] = ggml_set(tape.context(), out_grad, tape.zeros(shape_of(x)), bytes(0), bytes(1),
                            bytes(2), bytes(3));
    }
    if (needs[1]) {
        grads[1] =
            tape.contiguous_f32(ggml_view_4d(tape.context(), out_grad, x->ne[0], x->ne[1], x->ne[2],
                                             x->ne[3], bytes(0), bytes(1), bytes(2), bytes(3)));
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
