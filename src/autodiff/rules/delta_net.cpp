/// GATED_DELTA_NET: per head and sequence a matrix state M [rows j of the values][columns i of the
/// keys], both S long:
///   M'  = M_{t-1} * e  (columns; e = exp(g), one number or a vector of S)
///   d_j = beta (v_j - M'_j . k);   M_t = M' + d k^T;   o_j = M_t,j . q / sqrt(S)
/// The output is [o | the final states]. Queries and keys have fewer heads than values: value head
/// h reads head h mod H_k.
///
/// As the recurrence of autodiff/recurrence.h: w = e, k = k, v = beta v, a = e * k, b = -beta k,
/// r = q / sqrt(S); hence
///   q_grad = r_grad / sqrt(S);  k_grad = k' + e * a' - beta b'  (' = gradients of the recurrence)
///   v_grad = beta v';  beta_grad = v . v' - k . b';  g_grad = e * (w' + k * a'), summed if e is
///   one
/// Gradients of q and k are summed over the value heads that read them.
/// Refused: rollback snapshots (no state but the last one is asked for where gradients are),
/// queries shared by sequences. Needs: all inputs. Checked in
/// tests/autodiff/gradcheck/recurrent_cases.cpp
#include <cmath>
#include <numeric>

#include "autodiff/kernels.h"
#include "autodiff/recurrence.h"
#include "autodiff/rules/packed_grads.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"
#include "autodiff/rules/simd_rows.h"

namespace voodoo::autodiff::rules {

namespace {

enum Source { kQ, kK, kV, kG, kBeta, kState, kSources };

struct DeltaNetParams {
    PackedLayout layout;
};

/// Row [head, t, sequence] of a source.
const float* row_of(const ggml_tensor* t, int64_t head, int64_t step, int64_t sequence) {
    return reinterpret_cast<const float*>(static_cast<const char*>(t->data) + head * t->nb[1] +
                                          step * t->nb[2] + sequence * t->nb[3]);
}

/// One value head of one sequence. Sources are dst->src[0..5], src[6] is out_grad.
class DeltaNet : public recurrence::Problem {
public:
    DeltaNet(ggml_tensor* dst, const PackedLayout& layout, int64_t head, int64_t sequence)
        : dst_(dst), layout_(layout), head_(head), sequence_(sequence) {
        const ggml_tensor* v = dst->src[kV];
        size_ = v->ne[0];
        n_heads_ = v->ne[1];
        n_steps_ = v->ne[2];
        n_sequences_ = v->ne[3];
        scale_ = 1.0F / std::sqrt(static_cast<float>(size_));
        decay_.resize(static_cast<size_t>(size_));
    }

    recurrence::Form form() const override { return {size_, size_, true, false, false}; }
    int64_t n_steps() const override { return n_steps_; }

    void initial_state(float* state) override {
        const auto* from = static_cast<const float*>(dst_->src[kState]->data) + state_at();
        copy_rows(from, size_, state, form().padded_width());
    }
    void final_state_grad(float* grad) override {
        const int64_t n_outputs = size_ * n_heads_ * n_steps_ * n_sequences_;
        const auto* from = static_cast<const float*>(dst_->src[kSources]->data) + n_outputs;
        copy_rows(from + state_at(), size_, grad, form().padded_width());
    }

    void load(int64_t begin, int64_t n, recurrence::Steps& steps) override {
        const int64_t width = form().padded_width();
        const int64_t rows = form().padded_rows();
        for (int64_t t = 0; t < n; ++t) {
            const Inputs in = inputs(begin + t);
            for (int64_t i = 0; i < size_; ++i) {
                const int64_t at = t * width + i;
                steps.w[at] = decay_[i];
                steps.k[at] = in.k[i];
                steps.a[at] = decay_[i] * in.k[i];
                steps.b[at] = -in.beta * in.k[i];
                steps.r[at] = scale_ * in.q[i];
                steps.v[t * rows + i] = in.beta * in.v[i];
                steps.y[t * rows + i] = in.out_grad[i];
            }
        }
    }

    void store(int64_t begin, int64_t n, const recurrence::Steps&,
               const recurrence::Steps& grads) override {
        for (int64_t t = 0; t < n; ++t) {
            store_step(begin + t, t, grads);
        }
    }

    void store_initial_grad(const float* grad) override {
        copy_rows(grad, form().padded_width(), layout_.part(dst_, kState) + state_at(), size_);
    }

private:
    struct Inputs {
        const float *q, *k, *v, *out_grad;
        float beta;
    };

    int64_t state_at() const { return (sequence_ * n_heads_ + head_) * size_ * size_; }
    bool one_gate() const { return dst_->src[kG]->ne[0] == 1 && size_ != 1; }

    void copy_rows(const float* from, int64_t from_stride, float* to, int64_t to_stride) const {
        for (int64_t row = 0; row < size_; ++row) {
            std::copy(from + row * from_stride, from + row * from_stride + size_,
                      to + row * to_stride);
        }
    }

    /// Row of a contiguous array of this head's width at a step.
    int64_t row_at(int64_t n_heads, int64_t head, int64_t step) const {
        return head + n_heads * (step + n_steps_ * sequence_);
    }

    Inputs inputs(int64_t step) {
        const auto& src = dst_->src;
        const float* g = row_of(src[kG], head_, step, sequence_);
        if (one_gate()) {
            std::fill(decay_.begin(), decay_.end(), std::exp(g[0]));
        } else {
            exp_row(size_, g, decay_.data());
        }
        const auto* out_grad = static_cast<const float*>(src[kSources]->data);
        return {row_of(src[kQ], head_ % src[kQ]->ne[1], step, sequence_),
                row_of(src[kK], head_ % src[kK]->ne[1], step, sequence_),
                row_of(src[kV], head_, step, sequence_),
                out_grad + row_at(n_heads_, head_, step) * size_,
                *row_of(src[kBeta], head_, step, sequence_)};
    }

    void store_step(int64_t step, int64_t t, const recurrence::Steps& grads) {
        const Inputs in = inputs(step);
        const int64_t n_q = dst_->src[kQ]->ne[1];
        const int64_t n_k = dst_->src[kK]->ne[1];
        const int64_t at = t * form().padded_width();
        const float* v_step = grads.v.data() + t * form().padded_rows();
        float* q_grad = layout_.part(dst_, kQ) + row_at(n_q, head_ % n_q, step) * size_;
        float* k_grad = layout_.part(dst_, kK) + row_at(n_k, head_ % n_k, step) * size_;
        float* v_grad = layout_.part(dst_, kV) + row_at(n_heads_, head_, step) * size_;
        float* g_grad =
            layout_.part(dst_, kG) + row_at(n_heads_, head_, step) * (one_gate() ? 1 : size_);
        float beta_grad = 0.0F;
        float gate_sum = 0.0F;
        for (int64_t i = 0; i < size_; ++i) {
            const float a_grad = grads.a[at + i];
            const float b_grad = grads.b[at + i];
            q_grad[i] += scale_ * grads.r[at + i];
            k_grad[i] += grads.k[at + i] + decay_[i] * a_grad - in.beta * b_grad;
            v_grad[i] = in.beta * v_step[i];
            beta_grad += in.v[i] * v_step[i] - in.k[i] * b_grad;
            const float gate = decay_[i] * (grads.w[at + i] + in.k[i] * a_grad);
            gate_sum += gate;
            if (!one_gate()) {
                g_grad[i] = gate;
            }
        }
        if (one_gate()) {
            g_grad[0] = gate_sum;
        }
        layout_.part(dst_, kBeta)[row_at(n_heads_, head_, step)] = beta_grad;
    }

    ggml_tensor* dst_;
    const PackedLayout& layout_;
    int64_t head_, sequence_;
    int64_t size_, n_heads_, n_steps_, n_sequences_;
    float scale_;
    std::vector<float> decay_;
};

/// Heads that share a query or key head go to one thread: those equal modulo the gcd of both
/// counts.
void delta_net_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const PackedLayout& layout = static_cast<const DeltaNetParams*>(userdata)->layout;
    const ggml_tensor* q = dst->src[kQ];
    const ggml_tensor* k = dst->src[kK];
    const int64_t n_heads = dst->src[kV]->ne[1];
    const int64_t n_classes = std::gcd(q->ne[1], k->ne[1]);
    const kernels::Range tasks = kernels::share(n_classes * q->ne[3], ith, nth);
    recurrence::Workspace workspace;
    for (int64_t task = tasks.begin; task < tasks.end; ++task) {
        const int64_t sequence = task / n_classes;
        for (const auto& [x, part] : {std::pair{q, kQ}, std::pair{k, kK}}) {
            for (int64_t r = sequence * x->ne[2] * x->ne[1];
                 r < (sequence + 1) * x->ne[2] * x->ne[1]; ++r) {
                float* row = layout.part(dst, part) + r * x->ne[0];
                if (r % x->ne[1] % n_classes == task % n_classes) {
                    std::fill(row, row + x->ne[0], 0.0F);
                }
            }
        }
        for (int64_t head = task % n_classes; head < n_heads; head += n_classes) {
            DeltaNet problem(dst, layout, head, sequence);
            recurrence::backward(problem, workspace);
        }
    }
}

}  // namespace

std::string refuse_gated_delta_net(const ggml_tensor* node, const Needs& /*needs*/) {
    if (param_i32(node, 0) != 1) {
        return "rollback snapshots";
    }
    const int64_t n_sequences = node->src[kV]->ne[3];
    return node->src[kQ]->ne[3] == n_sequences && node->src[kK]->ne[3] == n_sequences
               ? ""
               : "queries or keys shared by sequences";
}

Grads gated_delta_net(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                      const Needs& needs) {
    DeltaNetParams params;
    std::vector<ggml_tensor*> args(node->src, node->src + kSources);
    args.push_back(out_grad);
    for (int i = 0; i < kSources; ++i) {
        params.layout.add(i, ggml_nelements(node->src[i]));
    }
    ggml_tensor* packed =
        tape.custom(GGML_TYPE_F32, {params.layout.size(), 1, 1, 1}, args, delta_net_kernel, params);
    Grads grads{};
    for (int i = 0; i < kSources; ++i) {
        if (needs[i]) {
            grads[i] = params.layout.view(tape, packed, i, shape_of(node->src[i]));
        }
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
