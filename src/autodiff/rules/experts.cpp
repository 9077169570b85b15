/// Mixtures of experts. ids [n_used, T] hold the experts of each token; they are constants.
///
/// MUL_MAT_ID  y[m, i, t] = sum_k a[k, m, ids[i, t]] b[k, i mod r, t]    (r = ne1 of b)
///   b_grad[., j, t] = sum over the slots i with i mod r = j of a[ids[i, t]]^T out_grad[., i, t]
///   a_grad[., ., e] = sum over the pairs (i, t) with ids[i, t] = e of out_grad[., i, t] b^T
/// ADD_ID  y[., i, t] = a[., i, t] + b[., ids[i, t]]
///   a_grad = out_grad       b_grad[., e] = sum of out_grad over the pairs with ids[i, t] = e
///
/// On the CPU a_grad is known to the tape in factors (Tape::find_expert_gradient), so that a
/// caller can take it expert by expert; the node that holds all of it costs nothing unless it is
/// put into a graph.
/// Needs: a, b, ids. Checked in tests/autodiff/gradcheck/expert_cases.cpp
#include "autodiff/experts.h"
#include "autodiff/kernels.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

ggml_tensor* experts_grad(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad) {
    ggml_tensor* x = node->src[1];
    const bool is_dense_row = x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float);
    const ExpertFactors factors{is_dense_row ? x : tape.contiguous_f32(x), out_grad, node->src[2]};
    ggml_tensor* const args[] = {factors.x, factors.out_grad, factors.ids};
    ggml_tensor* grad = tape.custom(GGML_TYPE_F32, shape_of(node->src[0]), args,
                                    kernels::expert_weight_grad, kernels::NoParams{});
    tape.note_expert_gradient(grad, factors);
    return grad;
}

ggml_tensor* input_grad(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad) {
    ggml_tensor* w = node->src[0];
    const Shape ne = shape_of(node->src[1]);
    if (!tape.options().cpu_custom_ops) {
        ggml_tensor* per_slot =
            ggml_mul_mat_id(tape.context(), tape.transposed_weight(w), out_grad, node->src[2]);
        return tape.reduce_to(per_slot, ne);
    }
    const bool is_dense_row = w->type == GGML_TYPE_F32 && w->nb[0] == sizeof(float);
    ggml_tensor* const args[] = {is_dense_row ? w : tape.contiguous_f32(w), out_grad, node->src[2]};
    return tape.custom(GGML_TYPE_F32, ne, args, kernels::expert_input_grad, kernels::NoParams{});
}

}  // namespace

Grads mul_mat_id(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Grads grads{};
    if (needs[0]) {
        grads[0] = experts_grad(tape, node, out_grad);
    }
    if (needs[1]) {
        grads[1] = input_grad(tape, node, out_grad);
    }
    return grads;
}

Grads add_id(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Grads grads{};
    if (needs[0]) {
        grads[0] = out_grad;
    }
    if (needs[1]) {
        // The sum of rows by index that GET_ROWS has too: slots and tokens in one dim.
        ggml_tensor* ids = tape.constant_i32(node->src[2]);
        const int64_t n_pairs = ids->ne[0] * ids->ne[1];
        ggml_tensor* flat = tape.reshape(out_grad, {out_grad->ne[0], n_pairs, 1, 1});
        grads[1] = add_rows(tape, node->src[1], flat, tape.reshape(ids, {n_pairs, 1, 1, 1}));
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
