/// SSM_SCAN: per head h, channel p of the head and sequence a state of N numbers n:
///   delta = softplus(dt);  s_n <- exp(delta A_n) s_n + delta x_p B_n;   y_p = sum_n C_n s_n
/// A is [N, heads] (Mamba 1) or [1, heads] (Mamba 2); a group of heads reads one B and C. The
/// output is [y | the final states]; `ids` picks each sequence's initial state.
///
/// As the recurrence of autodiff/recurrence.h: rows p, columns n, w = exp(delta A), v = delta x,
/// k = B, r = C, no a and b; hence, with D = w * w' the gradient of delta A (' = gradients of the
/// recurrence; summed over n for Mamba 2),
///   x_grad = delta v';  B_grad = k';  C_grad = r';  A_grad = sum_{tokens, p} delta D
///   dt_grad = sigmoid(dt) (sum_p x v' + sum_{p, n} A D)
/// B_grad and C_grad are summed over the group's heads: each thread adds up its share of them, a
/// second node the shares.
/// Refused: a gradient for the initial states (zero in a capture), rollback snapshots.
/// Needs: all inputs. Checked in tests/autodiff/gradcheck/recurrent_cases.cpp
#include <algorithm>
#include <cmath>

#include "autodiff/kernels.h"
#include "autodiff/recurrence.h"
#include "autodiff/rules/packed_grads.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"
#include "autodiff/rules/simd_rows.h"

namespace voodoo::autodiff::rules {

namespace {

enum Source { kState, kX, kDt, kA, kB, kC, kIds, kOutGrad };

struct ScanParams {
    PackedLayout layout;
    /// Shares that the heads of a group are cut into.
    int64_t n_shares = 1;
};

/// Sizes of one node, read from its sources.
struct Sizes {
    explicit Sizes(const ggml_tensor* node)
        : state(node->src[kState]->ne[0]),
          dim(node->src[kX]->ne[0]),
          heads(node->src[kX]->ne[1]),
          groups(node->src[kB]->ne[1]),
          tokens(node->src[kX]->ne[2]),
          sequences(node->src[kX]->ne[3]),
          one_decay(node->src[kA]->ne[0] == 1) {}

    int64_t state, dim, heads, groups, tokens, sequences;
    /// A head has one decay for all states (Mamba 2).
    bool one_decay;

    int64_t heads_of_group() const { return heads / groups; }
    /// Heads that the kernel takes together: rows enough to share the work on B and C.
    int64_t heads_of_block() const {
        constexpr int64_t kRowsOfBlock = 32;
        return one_decay ? 1 : std::max<int64_t>(1, kRowsOfBlock / dim);
    }
};

const float* at(const ggml_tensor* t, int64_t i1, int64_t i2, int64_t i3) {
    return reinterpret_cast<const float*>(static_cast<const char*>(t->data) + i1 * t->nb[1] +
                                          i2 * t->nb[2] + i3 * t->nb[3]);
}

/// Heads [first, end) of one group in one sequence.
class HeadBlock : public recurrence::Problem {
public:
    HeadBlock(ggml_tensor* dst, const ScanParams& params, int64_t first, int64_t end,
              int64_t sequence, int64_t share)
        : dst_(dst),
          params_(params),
          sizes_(dst),
          first_(first),
          n_heads_(end - first),
          sequence_(sequence),
          group_(first / sizes_.heads_of_group()),
          share_(share),
          form_{n_heads_ * sizes_.dim, sizes_.state, false, false, !sizes_.one_decay} {}

    recurrence::Form form() const override { return form_; }
    int64_t n_steps() const override { return sizes_.tokens; }

    void initial_state(float* state) override {
        const auto* ids = static_cast<const int32_t*>(dst_->src[kIds]->data);
        read_rows(at(dst_->src[kState], 0, 0, ids[sequence_]), state);
    }
    void final_state_grad(float* grad) override {
        const int64_t n_outputs = sizes_.dim * sizes_.heads * sizes_.tokens * sizes_.sequences;
        const int64_t size = sizes_.state * sizes_.dim * sizes_.heads;
        read_rows(out_grad() + n_outputs + sequence_ * size, grad);
    }
    void store_initial_grad(const float*) override {}

    void load(int64_t begin, int64_t n, recurrence::Steps& steps) override {
        const int64_t width = form_.padded_width();
        for (int64_t t = 0; t < n; ++t) {
            const float* b = at(dst_->src[kB], group_, begin + t, sequence_);
            const float* c = at(dst_->src[kC], group_, begin + t, sequence_);
            std::copy(b, b + sizes_.state, steps.k.data() + t * width);
            std::copy(c, c + sizes_.state, steps.r.data() + t * width);
            for (int64_t h = 0; h < n_heads_; ++h) {
                load_head(begin + t, t, h, steps);
            }
        }
        if (sizes_.one_decay) {
            return;
        }
        // load_head() left delta A; the padding's exp(0) = 1 decays states that are zero.
        exp_row(static_cast<int64_t>(steps.w.size()), steps.w.data(), steps.w.data());
    }

    void store(int64_t begin, int64_t n, const recurrence::Steps& steps,
               const recurrence::Steps& grads) override {
        const int64_t width = form_.padded_width();
        for (int64_t t = 0; t < n; ++t) {
            const int64_t to =
                sizes_.state *
                (group_ +
                 sizes_.groups *
                     (begin + t + sizes_.tokens * (sequence_ + sizes_.sequences * share_)));
            float* b_grad = params_.layout.part(dst_, kB) + to;
            float* c_grad = params_.layout.part(dst_, kC) + to;
            for (int64_t i = 0; i < sizes_.state; ++i) {
                b_grad[i] += grads.k[t * width + i];
                c_grad[i] += grads.r[t * width + i];
            }
            for (int64_t h = 0; h < n_heads_; ++h) {
                store_head(begin + t, t, h, steps, grads);
            }
        }
    }

private:
    const float* out_grad() const { return static_cast<const float*>(dst_->src[kOutGrad]->data); }
    float dt(int64_t step, int64_t h) const {
        return at(dst_->src[kDt], step, sequence_, 0)[first_ + h];
    }
    const float* decay(int64_t h) const {
        return static_cast<const float*>(dst_->src[kA]->data) + (first_ + h) * dst_->src[kA]->ne[0];
    }
    static float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }
    /// Index of the head's first channel in a contiguous [dim, heads, tokens, sequences].
    int64_t channel_at(int64_t step, int64_t h) const {
        return sizes_.dim * (first_ + h + sizes_.heads * (step + sizes_.tokens * sequence_));
    }

    /// The block's rows of one sequence's states.
    void read_rows(const float* states, float* to) const {
        const float* from = states + first_ * sizes_.dim * sizes_.state;
        for (int64_t row = 0; row < form_.rows; ++row) {
            std::copy(from + row * sizes_.state, from + (row + 1) * sizes_.state,
                      to + row * form_.padded_width());
        }
    }

    void load_head(int64_t step, int64_t t, int64_t h, recurrence::Steps& steps) const {
        const float delta = softplus(dt(step, h));
        const float* a = decay(h);
        const float* x = at(dst_->src[kX], first_ + h, step, sequence_);
        const float* y_grad = out_grad() + channel_at(step, h);
        const int64_t width = form_.padded_width();
        for (int64_t p = 0; p < sizes_.dim; ++p) {
            const int64_t row = h * sizes_.dim + p;
            steps.v[t * form_.padded_rows() + row] = delta * x[p];
            steps.y[t * form_.padded_rows() + row] = y_grad[p];
            if (!sizes_.one_decay) {
                float* w = steps.w.data() + (t * form_.padded_rows() + row) * width;
                for (int64_t i = 0; i < sizes_.state; ++i) {
                    w[i] = delta * a[i];
                }
            }
        }
        if (sizes_.one_decay) {
            float* w = steps.w.data() + t * width;
            std::fill(w, w + width, std::exp(delta * a[0]));
        }
    }

    void store_head(int64_t step, int64_t t, int64_t h, const recurrence::Steps& steps,
                    const recurrence::Steps& grads) const {
        const float raw = dt(step, h);
        const float delta = softplus(raw);
        const float* a = decay(h);
        const int64_t n_decays = dst_->src[kA]->ne[0];
        const float* x = at(dst_->src[kX], first_ + h, step, sequence_);
        float* x_grad = params_.layout.part(dst_, kX) + channel_at(step, h);
        float* a_grad =
            params_.layout.part(dst_, kA) + (first_ + h + sizes_.heads * sequence_) * n_decays;
        float delta_grad = 0.0F;
        for (int64_t p = 0; p < sizes_.dim; ++p) {
            const float v_grad = grads.v[t * form_.padded_rows() + h * sizes_.dim + p];
            x_grad[p] = delta * v_grad;
            delta_grad += x[p] * v_grad;
        }
        const int64_t n_rows = sizes_.one_decay ? 1 : sizes_.dim;
        for (int64_t p = 0; p < n_rows; ++p) {
            const int64_t row = sizes_.one_decay ? t : t * form_.padded_rows() + h * sizes_.dim + p;
            const float* w = steps.w.data() + row * form_.padded_width();
            const float* w_grad = grads.w.data() + row * form_.padded_width();
            for (int64_t i = 0; i < sizes_.state; ++i) {
                const int64_t j = sizes_.one_decay ? 0 : i;
                const float d = w[i] * w_grad[i];
                delta_grad += a[j] * d;
                a_grad[j] += delta * d;
            }
        }
        float* dt_grad = params_.layout.part(dst_, kDt);
        dt_grad[first_ + h + sizes_.heads * (step + sizes_.tokens * sequence_)] =
            delta_grad / (1.0F + std::exp(-raw));
    }

    ggml_tensor* dst_;
    const ScanParams& params_;
    Sizes sizes_;
    int64_t first_, n_heads_, sequence_, group_, share_;
    recurrence::Form form_;
};

/// A task is one share of a group's heads in one sequence.
void scan_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const auto& params = *static_cast<const ScanParams*>(userdata);
    const Sizes sizes(dst);
    const int64_t n_shares = params.n_shares;
    const kernels::Range tasks =
        kernels::share(n_shares * sizes.groups * sizes.sequences, ith, nth);
    const int64_t n_decays = dst->src[kA]->ne[0];
    recurrence::Workspace workspace;
    for (int64_t task = tasks.begin; task < tasks.end; ++task) {
        const int64_t share = task % n_shares;
        const int64_t group = task / n_shares % sizes.groups;
        const int64_t sequence = task / n_shares / sizes.groups;
        const kernels::Range heads = kernels::share(sizes.heads_of_group(), static_cast<int>(share),
                                                    static_cast<int>(n_shares));
        for (int64_t t = 0; t < sizes.tokens; ++t) {
            const int64_t row =
                group + sizes.groups * (t + sizes.tokens * (sequence + sizes.sequences * share));
            for (const int part : {kB, kC}) {
                float* sums = params.layout.part(dst, part) + row * sizes.state;
                std::fill(sums, sums + sizes.state, 0.0F);
            }
        }
        const int64_t first = group * sizes.heads_of_group() + heads.begin;
        const int64_t end = group * sizes.heads_of_group() + heads.end;
        float* a_grad = params.layout.part(dst, kA) + sizes.heads * sequence * n_decays;
        std::fill(a_grad + first * n_decays, a_grad + end * n_decays, 0.0F);
        for (int64_t h = first; h < end; h += sizes.heads_of_block()) {
            HeadBlock problem(dst, params, h, std::min(end, h + sizes.heads_of_block()), sequence,
                              share);
            recurrence::backward(problem, workspace);
        }
    }
}

}  // namespace

std::string refuse_ssm_scan(const ggml_tensor* node, const Needs& needs) {
    if (needs[kState]) {
        return "initial states that want a gradient";
    }
    return param_i32(node, 0) == 1 ? "" : "rollback snapshots";
}

Grads ssm_scan(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    const Sizes sizes(node);
    constexpr int64_t kTasks = 32;  // enough for the threads of a large machine
    ScanParams params;
    params.n_shares =
        std::clamp<int64_t>(kTasks / (sizes.groups * sizes.sequences), 1, sizes.heads_of_group());
    const int64_t n_a = ggml_nelements(node->src[kA]);
    const int64_t n_b = ggml_nelements(node->src[kB]);
    params.layout.add(kX, ggml_nelements(node->src[kX]));
    params.layout.add(kDt, ggml_nelements(node->src[kDt]));
    params.layout.add(kA, n_a * sizes.sequences);
    params.layout.add(kB, n_b * params.n_shares);
    params.layout.add(kC, n_b * params.n_shares);
    std::vector<ggml_tensor*> args(node->src, node->src + kOutGrad);
    args.push_back(out_grad);
    ggml_tensor* packed =
        tape.custom(GGML_TYPE_F32, {params.layout.size(), 1, 1, 1}, args, scan_kernel, params);

    Grads grads{};
    const auto whole = [&](int i) {
        return params.layout.view(tape, packed, i, shape_of(node->src[i]));
    };
    const auto summed = [&](int i, int64_t n, int64_t n_parts) {
        ggml_tensor* parts = params.layout.view(tape, packed, i, {n, n_parts, 1, 1});
        return tape.reshape(tape.reduce_to(parts, {n, 1, 1, 1}), shape_of(node->src[i]));
    };
    if (needs[kX]) grads[kX] = whole(kX);
    if (needs[kDt]) grads[kDt] = whole(kDt);
    if (needs[kA]) grads[kA] = summed(kA, n_a, sizes.sequences);
    if (needs[kB]) grads[kB] = summed(kB, n_b, params.n_shares);
    if (needs[kC]) grads[kC] = summed(kC, n_b, params.n_shares);
    return grads;
}

}  // namespace voodoo::autodiff::rules
