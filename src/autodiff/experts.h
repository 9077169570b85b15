// The matrix products behind MUL_MAT_ID's gradient: rows of activations grouped by the expert that
// they were routed to, one dense product per expert. CPU only.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <span>
#include <vector>

namespace voodoo::autodiff {

/// One routing decision: expert ids[slot, token].
struct ExpertPair {
    int64_t slot;
    int64_t token;
};

/// The pairs of a routing, by expert; those of one expert in the order of tokens and slots.
class ExpertGroups {
public:
    /// ids: I32 [n_used, n_tokens], any strides, computed, every id below n_expert.
    ExpertGroups(const ggml_tensor* ids, int64_t n_expert);

    std::span<const ExpertPair> of(int64_t expert) const {
        const auto begin = static_cast<size_t>(first_[static_cast<size_t>(expert)]);
        return {pairs_.data() + begin,
                static_cast<size_t>(first_[static_cast<size_t>(expert) + 1]) - begin};
    }

private:
    std::vector<int64_t> first_;  // [n_expert + 1]
    std::vector<ExpertPair> pairs_;
};

/// dL/dW of experts' weights in factors. For expert e: the sum over its pairs of out_grad x^T.
struct ExpertFactors {
    ggml_tensor* x = nullptr;         ///< F32 [k, n_used or a divisor, n_tokens], rows dense
    ggml_tensor* out_grad = nullptr;  ///< F32 [m, n_used, n_tokens], rows dense
    ggml_tensor* ids = nullptr;       ///< I32 [n_used, n_tokens]
};

/// Computes dL/dW of one expert at a time from computed factors. One object per thread.
class ExpertGradient {
public:
    ExpertGradient(const ExpertFactors& factors, int64_t n_expert);

    /// Makes `expert` current; false if no token was routed to it (its gradient is zero).
    /// [row_begin, row_end): the rows that rows() will be asked for.
    bool select(int64_t expert, int64_t row_begin, int64_t row_end);
    /// Rows [begin, end) of the current expert's gradient, [end - begin][k], to `out`.
    void rows(int64_t begin, int64_t end, float* out) const;

private:
    ExpertFactors factors_;
    ExpertGroups groups_;
    int64_t n_pairs_ = 0;
    int64_t row_begin_ = 0;
    int64_t n_rows_ = 0;
    std::vector<float> x_;     // [n_pairs][k]
    std::vector<float> grad_;  // [n_pairs][row_end - row_begin]
};

namespace kernels {

/// dst [k, m, n_expert] = the whole dL/dW; src: x, out_grad, ids as in ExpertFactors. NoParams.
void expert_weight_grad(ggml_tensor* dst, int ith, int nth, void* params);

/// dst [k, n_used or a divisor, n_tokens] = sum over the slots that read a row of x of
/// W_ids^T out_grad; src: W (F32 [k, m, n_expert], rows dense), out_grad, ids. NoParams.
void expert_input_grad(ggml_tensor* dst, int ith, int nth, void* params);

}  // namespace kernels

}  // namespace voodoo::autodiff
