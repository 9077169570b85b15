// Helpers that the vjp rules build with.
#include "autodiff/tape.h"

#include "autodiff/experts.h"
#include "autodiff/kernels.h"
#include "base/error.h"

namespace voodoo::autodiff {

namespace {

bool is_plain_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

}  // namespace

Tape::Tape(ggml_context* context, TapeOptions options, TapeHooks hooks)
    : context_(context), options_(options), hooks_(std::move(hooks)) {
    VOODOO_CHECK(context != nullptr, "[Tape] no context");
    VOODOO_CHECK(
        is_plain_float(options.weight_grad_type) && options.weight_grad_type != GGML_TYPE_F16,
        "[Tape] weight_grad_type must be F32 or BF16");
}

ggml_tensor* Tape::custom_node(ggml_type type, const Shape& ne, std::span<ggml_tensor* const> args,
                               ggml_custom_op_t function, void* userdata) {
    std::vector<ggml_tensor*> sources(args.begin(), args.end());
    ggml_tensor* node =
        ggml_custom_4d(context_, type, ne[0], ne[1], ne[2], ne[3], sources.data(),
                       static_cast<int>(sources.size()), function, GGML_N_TASKS_MAX, userdata);
    custom_nodes_.push_back(node);
    return node;
}

ggml_tensor* Tape::make_transpose(ggml_tensor* x, ggml_type type) {
    if (!is_plain_float(x->type)) {
        x = ggml_cast(context_, x, GGML_TYPE_F32);
    }
    const Shape ne = {x->ne[1], x->ne[0], x->ne[2], x->ne[3]};
    if (options_.cpu_custom_ops) {
        ggml_tensor* const args[] = {x};
        return custom(type, ne, args, kernels::copy, kernels::CopyParams{true});
    }
    ggml_tensor* turned = ggml_transpose(context_, x);
    return x->type == type ? ggml_cont(context_, turned) : ggml_cast(context_, turned, type);
}

ggml_tensor* Tape::transpose(ggml_tensor* x) {
    ggml_tensor*& cached = transposes_[0][x];
    if (cached == nullptr) {
        cached = make_transpose(x, GGML_TYPE_F32);
    }
    return cached;
}

ggml_tensor* Tape::transpose_for_weight_grad(ggml_tensor* x) {
    if (options_.weight_grad_type == GGML_TYPE_F32) {
        return transpose_for_matmul(x);
    }
    ggml_tensor*& cached = transposes_[1][x];
    if (cached == nullptr) {
        cached = make_transpose(x, options_.weight_grad_type);
    }
    return cached;
}

ggml_tensor* Tape::transpose_for_matmul(ggml_tensor* x) {
    if (x->type == GGML_TYPE_F32 && x->nb[1] == sizeof(float) &&
        x->nb[0] >= sizeof(float) * x->ne[1]) {
        return ggml_transpose(context_, x);
    }
    return transpose(x);
}

ggml_tensor* Tape::transposed_weight(ggml_tensor* w) {
    ggml_tensor* given = hooks_.transposed_weight ? hooks_.transposed_weight(w) : nullptr;
    if (given == nullptr) {
        return transpose_for_matmul(w);
    }
    VOODOO_CHECK(given->ne[0] == w->ne[1] && given->ne[1] == w->ne[0] && given->ne[2] == w->ne[2] &&
                     given->ne[3] == w->ne[3],
                 "[Tape::transposed_weight] hook gave [{}, {}] for '{}' [{}, {}]", given->ne[0],
                 given->ne[1], w->name, w->ne[0], w->ne[1]);
    return given;
}

ggml_tensor* Tape::constant_i32(ggml_tensor* indices) {
    if (indices->type == GGML_TYPE_I32) {
        return ggml_is_contiguous(indices) ? indices : ggml_cont(context_, indices);
    }
    ggml_tensor*& made = i32_constants_[indices];
    if (made == nullptr) {
        if (!hooks_.constant_i32) {
            throw Error(ErrorKind::unsupported_op,
                        fmt::format("index tensor '{}' is not I32", indices->name),
                        "Tape::constant_i32", "pass the constant_i32 hook");
        }
        made = hooks_.constant_i32(indices);
        VOODOO_CHECK(
            made != nullptr && made->type == GGML_TYPE_I32 && ggml_are_same_shape(made, indices),
            "[Tape::constant_i32] the hook's leaf for '{}' is not I32 of the same shape",
            indices->name);
    }
    return made;
}

void Tape::note_expert_gradient(const ggml_tensor* grad, const ExpertFactors& factors) {
    expert_gradients_[grad] = std::make_shared<const ExpertFactors>(factors);
}

const ExpertFactors* Tape::find_expert_gradient(const ggml_tensor* grad) const {
    const auto found = expert_gradients_.find(grad);
    return found == expert_gradients_.end() ? nullptr : found->second.get();
}

ggml_tensor* Tape::zeros(const Shape& ne) {
    if (options_.cpu_custom_ops) {
        return custom(GGML_TYPE_F32, ne, {}, kernels::zero, kernels::NoParams{});
    }
    // ggml has no nullary zeros; arange(0, 1) is one 0.
    return ggml_repeat_4d(context_, ggml_arange(context_, 0.0F, 1.0F, 1.0F), ne[0], ne[1], ne[2],
                          ne[3]);
}

ggml_tensor* Tape::reduce_to(ggml_tensor* x, const Shape& ne) {
    if (shape_of(x) == ne) {
        return x;
    }
    if (options_.cpu_custom_ops) {
        ggml_tensor* const args[] = {x};
        return custom(GGML_TYPE_F32, ne, args, kernels::reduce, kernels::NoParams{});
    }
    // ggml_repeat_back only reads the shape of its second argument.
    return ggml_repeat_back(context_, x, ggml_new_tensor(context_, GGML_TYPE_F32, 4, ne.data()));
}

ggml_tensor* Tape::repeat_to(ggml_tensor* x, const Shape& ne) {
    return shape_of(x) == ne ? x : ggml_repeat_4d(context_, x, ne[0], ne[1], ne[2], ne[3]);
}

ggml_tensor* Tape::reshape(ggml_tensor* x, const Shape& ne) {
    return shape_of(x) == ne ? x : ggml_reshape_4d(context_, x, ne[0], ne[1], ne[2], ne[3]);
}

ggml_tensor* Tape::contiguous_f32(ggml_tensor* x) {
    if (x->type == GGML_TYPE_F32 && ggml_is_contiguous(x)) {
        return x;
    }
    if (!is_plain_float(x->type)) {
        return ggml_cast(context_, x, GGML_TYPE_F32);
    }
    if (options_.cpu_custom_ops) {
        ggml_tensor* const args[] = {x};
        return custom(GGML_TYPE_F32, shape_of(x), args, kernels::copy, kernels::CopyParams{});
    }
    return x->type == GGML_TYPE_F32 ? ggml_cont(context_, x)
                                    : ggml_cast(context_, x, GGML_TYPE_F32);
}

}  // namespace voodoo::autodiff
