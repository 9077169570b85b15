/// Recurrences with a square state per head of S numbers; inputs [S, heads, tokens], the tokens of
/// the sequences one after another; the output is [y | the final states].
///
/// RWKV_WKV6          y_j = sum_i r_i (S_ij + u_i k_i v_j);  S_ij <- w_i S_ij + k_i v_j
/// GATED_LINEAR_ATTN  S_ij <- g_i S_ij + k_i v_j;            y_j = scale sum_i q_i S_ij
/// RWKV_WKV7          S_ij <- w_j S_ij + v_i k_j + (sum_l a_l S_il) b_j;   y_i = sum_j r_j S_ij
///
/// All are the recurrence of autodiff/recurrence.h, the first two with rows j and columns i and
/// without a and b. The bonus u of WKV6 adds, with c = y_grad . v and m = sum_i r_i u_i k_i,
///   r_grad += u k c;  u_grad += r k c;  k_grad += r u c;  v_grad += m y_grad
/// Needs: all inputs. Checked in tests/autodiff/gradcheck/recurrent_cases.cpp
#include "autodiff/kernels.h"
#include "autodiff/recurrence.h"
#include "autodiff/rules/packed_grads.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

constexpr int kAbsent = -1;

/// Which source holds what; the state is the last source, out_grad comes after it.
struct Wkv {
    int k, v, r, w;
    int a = kAbsent;
    int b = kAbsent;
    int bonus = kAbsent;
    int state = 0;
    /// Rows of the state are the second index of ggml's array.
    bool transposed = true;
    float scale = 1.0F;
    PackedLayout layout{};
};

class WkvHead : public recurrence::Problem {
public:
    WkvHead(ggml_tensor* dst, const Wkv& op, int64_t head, int64_t sequence)
        : dst_(dst), op_(op), head_(head), sequence_(sequence) {
        const ggml_tensor* k = dst->src[op.k];
        size_ = k->ne[0];
        n_heads_ = k->ne[1];
        n_tokens_ = k->ne[2];
        n_steps_ = n_tokens_ / dst->src[op.state]->ne[1];
    }

    recurrence::Form form() const override {
        return {size_, size_, op_.a != kAbsent, op_.bonus != kAbsent, false};
    }
    int64_t n_steps() const override { return n_steps_; }

    void initial_state(float* state) override {
        read_state(static_cast<const float*>(dst_->src[op_.state]->data) + state_at(), state);
    }
    void final_state_grad(float* grad) override {
        const auto* out_grad = static_cast<const float*>(dst_->src[op_.state + 1]->data);
        read_state(out_grad + n_tokens_ * n_heads_ * size_ + state_at(), grad);
    }
    void store_initial_grad(const float* grad) override {
        float* to = op_.layout.part(dst_, op_.state) + state_at();
        for (int64_t i = 0; i < size_ * size_; ++i) {
            const int64_t row = op_.transposed ? i % size_ : i / size_;
            const int64_t column = op_.transposed ? i / size_ : i % size_;
            to[i] = grad[row * form().padded_width() + column];
        }
    }

    void load(int64_t begin, int64_t n, recurrence::Steps& steps) override {
        const int64_t width = form().padded_width();
        const int64_t rows = form().padded_rows();
        for (int64_t t = 0; t < n; ++t) {
            const int64_t from = row_at(begin + t);
            for (int64_t i = 0; i < size_; ++i) {
                steps.w[t * width + i] = source(op_.w)[from + i];
                steps.k[t * width + i] = source(op_.k)[from + i];
                steps.r[t * width + i] = op_.scale * source(op_.r)[from + i];
                if (op_.a != kAbsent) {
                    steps.a[t * width + i] = source(op_.a)[from + i];
                    steps.b[t * width + i] = source(op_.b)[from + i];
                }
                steps.v[t * rows + i] = source(op_.v)[from + i];
                steps.y[t * rows + i] = source(op_.state + 1)[from + i];
            }
        }
    }

    void store(int64_t begin, int64_t n, const recurrence::Steps&,
               const recurrence::Steps& grads) override {
        const int64_t width = form().padded_width();
        const int64_t rows = form().padded_rows();
        for (int64_t t = 0; t < n; ++t) {
            const int64_t to = row_at(begin + t);
            for (int64_t i = 0; i < size_; ++i) {
                part(op_.w)[to + i] = grads.w[t * width + i];
                part(op_.k)[to + i] = grads.k[t * width + i];
                part(op_.r)[to + i] = op_.scale * grads.r[t * width + i];
                if (op_.a != kAbsent) {
                    part(op_.a)[to + i] = grads.a[t * width + i];
                    part(op_.b)[to + i] = grads.b[t * width + i];
                }
                part(op_.v)[to + i] = grads.v[t * rows + i];
            }
            if (op_.bonus != kAbsent) {
                add_bonus(to);
            }
        }
    }

private:
    const float* source(int i) const { return static_cast<const float*>(dst_->src[i]->data); }
    float* part(int i) const { return op_.layout.part(dst_, i); }
    /// Where this head's numbers at a step start.
    int64_t row_at(int64_t step) const {
        return (head_ + n_heads_ * (step + n_steps_ * sequence_)) * size_;
    }
    int64_t state_at() const { return (sequence_ * n_heads_ + head_) * size_ * size_; }

    void read_state(const float* from, float* state) const {
        for (int64_t i = 0; i < size_ * size_; ++i) {
            const int64_t row = op_.transposed ? i % size_ : i / size_;
            const int64_t column = op_.transposed ? i / size_ : i % size_;
            state[row * form().padded_width() + column] = from[i];
        }
    }

    void add_bonus(int64_t at) {
        const float* k = source(op_.k) + at;
        const float* v = source(op_.v) + at;
        const float* r = source(op_.r) + at;
        const float* y_grad = source(op_.state + 1) + at;
        const float* u = source(op_.bonus) + head_ * size_;
        float* u_grad = part(op_.bonus) + head_ * size_;
        float c = 0.0F;
        float m = 0.0F;
        for (int64_t i = 0; i < size_; ++i) {
            c += y_grad[i] * v[i];
            m += r[i] * u[i] * k[i];
        }
        for (int64_t i = 0; i < size_; ++i) {
            part(op_.r)[at + i] += u[i] * k[i] * c;
            u_grad[i] += r[i] * k[i] * c;
            part(op_.k)[at + i] += r[i] * u[i] * c;
            part(op_.v)[at + i] += m * y_grad[i];
        }
    }

    ggml_tensor* dst_;
    const Wkv& op_;
    int64_t head_, sequence_;
    int64_t size_, n_heads_, n_tokens_, n_steps_;
};

/// A thread takes whole heads: the bonus is shared by the sequences.
void wkv_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const Wkv& op = *static_cast<const Wkv*>(userdata);
    const kernels::Range heads = kernels::share(dst->src[op.k]->ne[1], ith, nth);
    const int64_t size = dst->src[op.k]->ne[0];
    recurrence::Workspace workspace;
    for (int64_t head = heads.begin; head < heads.end; ++head) {
        if (op.bonus != kAbsent) {
            float* bonus = op.layout.part(dst, op.bonus) + head * size;
            std::fill(bonus, bonus + size, 0.0F);
        }
        for (int64_t sequence = 0; sequence < dst->src[op.state]->ne[1]; ++sequence) {
            WkvHead problem(dst, op, head, sequence);
            recurrence::backward(problem, workspace);
        }
    }
}

Grads run(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs, Wkv op) {
    std::vector<ggml_tensor*> args(node->src, node->src + op.state + 1);
    args.push_back(out_grad);
    for (int i = 0; i <= op.state; ++i) {
        op.layout.add(i, ggml_nelements(node->src[i]));
    }
    ggml_tensor* packed =
        tape.custom(GGML_TYPE_F32, {op.layout.size(), 1, 1, 1}, args, wkv_kernel, op);
    Grads grads{};
    for (int i = 0; i <= op.state; ++i) {
        if (needs[i]) {
            grads[i] = op.layout.view(tape, packed, i, shape_of(node->src[i]));
        }
    }
    return grads;
}

}  // namespace

Grads rwkv_wkv6(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    return run(tape, node, out_grad, needs,
               {.k = 0, .v = 1, .r = 2, .w = 4, .bonus = 3, .state = 5});
}

Grads gated_linear_attn(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                        const Needs& needs) {
    return run(tape, node, out_grad, needs,
               {.k = 0, .v = 1, .r = 2, .w = 3, .state = 4, .scale = param_f32(node, 0)});
}

Grads rwkv_wkv7(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    return run(tape, node, out_grad, needs,
               {.k = 2, .v = 3, .r = 0, .w = 1, .a = 4, .b = 5, .state = 6, .transposed = false});
}

}  // namespace voodoo::autodiff::rules
