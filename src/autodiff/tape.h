// What the vjp rules build with: the context, options, hooks of the caller, and helpers that have a
// fast CPU form.
#pragma once

#include <ggml.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace voodoo::autodiff {

struct Rule;
struct ExpertFactors;

/// ne0..ne3.
using Shape = std::array<int64_t, 4>;

inline Shape shape_of(const ggml_tensor* t) {
    return {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
}

struct TapeOptions {
    /// Use multithreaded ggml_custom_4d nodes of our own (CPU) for transposes, fused derivatives
    /// and scatters. Off: plain ggml ops wherever they can express it, for graphs that run on other
    /// devices (see Tape::custom_nodes()).
    bool cpu_custom_ops = true;
    /// Type of the transposed left operand of the weight-gradient matmul: F32, or BF16 (faster
    /// where the CPU has it; ggml then rounds the right operand too).
    ggml_type weight_grad_type = GGML_TYPE_F32;
};

/// Called while rules build; each may be empty.
struct TapeHooks {
    /// A new I32 leaf (same ne) that the caller will fill with the values of `index_leaf` (I64)
    /// before computing.
    std::function<ggml_tensor*(const ggml_tensor* index_leaf)> constant_i32;
    /// A tensor [ne1, ne0, ne2, ne3] that holds the transpose of weight `w` (any type mul_mat takes
    /// as src0), or nullptr.
    std::function<ggml_tensor*(const ggml_tensor* w)> transposed_weight;
    /// Replaces the registry's look-up in backward(), e.g. to inject faults in tests; empty:
    /// find_rule().
    std::function<const Rule*(const ggml_tensor* node)> rule_override;
};

/// Builder context of one backward graph. Owns the parameters of its custom nodes: it must outlive
/// every computation of the graph (moving it is fine). Not thread-safe.
class Tape {
public:
    explicit Tape(ggml_context* context, TapeOptions options = {}, TapeHooks hooks = {});

    ggml_context* context() const { return context_; }
    const TapeOptions& options() const { return options_; }
    const TapeHooks& hooks() const { return hooks_; }

    /// Contiguous F32 copy of `x` with ne0 and ne1 swapped (x of any type and strides). Cached per
    /// tensor.
    ggml_tensor* transpose(ggml_tensor* x);
    /// As transpose_for_matmul(), in options().weight_grad_type.
    ggml_tensor* transpose_for_weight_grad(ggml_tensor* x);
    /// The hook's transpose of weight `w`, else one that is computed (dequantized to F32 first).
    ggml_tensor* transposed_weight(ggml_tensor* w);
    /// Contiguous I32 form of an index tensor; I64 needs the hook. Throws Error(unsupported_op)
    /// without it.
    ggml_tensor* constant_i32(ggml_tensor* indices);
    /// x^T as an operand of mul_mat: F32, [ne1, ne0, ne2, ne3], rows dense; a view where x already
    /// lies that way.
    ggml_tensor* transpose_for_matmul(ggml_tensor* x);
    /// F32 tensor of zeros.
    ggml_tensor* zeros(const Shape& ne);
    /// Sums `x` (F32, contiguous) down to shape `ne`, which divides its shape (the transpose of
    /// ggml_repeat).
    ggml_tensor* reduce_to(ggml_tensor* x, const Shape& ne);
    /// Repeats `x` up to shape `ne`.
    ggml_tensor* repeat_to(ggml_tensor* x, const Shape& ne);
    /// `x` (contiguous) with another shape of as many elements; x itself where the shape is the
    /// same.
    ggml_tensor* reshape(ggml_tensor* x, const Shape& ne);
    /// F32, contiguous form of x: x itself where it is.
    ggml_tensor* contiguous_f32(ggml_tensor* x);

    /// A custom node of this tape. `params` (copied, kept alive by the tape) is the function's
    /// userdata.
    template <class Params>
    ggml_tensor* custom(ggml_type type, const Shape& ne, std::span<ggml_tensor* const> args,
                        ggml_custom_op_t function, const Params& params) {
        auto owned = std::make_shared<Params>(params);
        ggml_tensor* node = custom_node(type, ne, args, function, owned.get());
        params_.push_back(std::move(owned));
        return node;
    }

    /// Remembers that `grad` is the gradient of experts' weights that `factors` give.
    void note_expert_gradient(const ggml_tensor* grad, const ExpertFactors& factors);
    /// The factors of a gradient of experts' weights, so that it need not be computed whole;
    /// nullptr where `grad` is something else (a sum of such gradients, too).
    const ExpertFactors* find_expert_gradient(const ggml_tensor* grad) const;

    /// Every custom node made so far: the scheduler must pin them to the CPU backend.
    std::span<ggml_tensor* const> custom_nodes() const { return custom_nodes_; }

private:
    ggml_tensor* custom_node(ggml_type type, const Shape& ne, std::span<ggml_tensor* const> args,
                             ggml_custom_op_t function, void* userdata);
    ggml_tensor* make_transpose(ggml_tensor* x, ggml_type type);

    ggml_context* context_;
    TapeOptions options_;
    TapeHooks hooks_;
    std::vector<std::shared_ptr<void>> params_;
    std::vector<ggml_tensor*> custom_nodes_;
    std::unordered_map<const ggml_tensor*, ggml_tensor*> transposes_[2];
    std::unordered_map<const ggml_tensor*, ggml_tensor*> i32_constants_;
    std::unordered_map<const ggml_tensor*, std::shared_ptr<const ExpertFactors>> expert_gradients_;
};

}  // namespace voodoo::autodiff
