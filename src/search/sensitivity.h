// Second-order scores: what each type costs each tensor, in nats of KL divergence per token, from
// sampled rows of a few chunks. Pure statistics: the engine supplies the squares, this file does
// the rest.
//
// Near the teacher, KL = 1/2 d' F d with the Fisher matrix F of the whole model and the weights'
// change d. A backward pass of a random cotangent whose covariance is the softmax's Hessian gives
// G with E[G G'] = F, so that with the error D_k of type k
//   cost_k = 1 / (2 n_chunks n_positions) sum over chunks and rows of (sum over columns of G D_k)^2
// (squared per row: the products of different rows average to about zero, and only add noise).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace voodoo::search {

/// The rows of a tensor that are looked at.
struct SampledRows {
    size_t n_types = 0;
    int64_t n_rows = 0;  ///< of the whole tensor
    /// One entry per sampled row. Certain rows are in the sample on purpose and count once; the
    /// others are a uniform sample of all rows that are not certain.
    std::vector<char> certain;
};

/// What one chunk says about one tensor.
struct RowSquares {
    std::vector<double> squares;  ///< [n_types][n_sampled]: (sum over columns of G D_k)^2 of a row
    std::vector<double> proxy;    ///< [n_sampled]: a cheap quantity that the squares go with
    double proxy_rest = 0.0;      ///< sum of the proxy over ALL rows that are not certain
};

struct SensitivityScores {
    std::vector<std::vector<double>> cost;  ///< [tensor][type], nats per token
    std::vector<std::vector<double>>
        error;  ///< standard errors: chunks and sampled rows taken together
    int n_chunks = 0;
};

/// Adds up chunks. From sampled rows to the whole tensor by the ratio estimator
///   C = sum of certain squares + (sum of sampled squares / sum of sampled proxies) * proxy_rest
/// whose error is that of the residuals squares - ratio * proxy, not that of the squares
/// (Cochran, Sampling Techniques, chapter 6). Not thread-safe.
class Sensitivity {
public:
    /// n_positions: scored tokens of a chunk. Throws Error(usage) on a tensor without rows or
    /// types, or with more sampled rows than rows.
    Sensitivity(std::vector<SampledRows> tensors, int64_t n_positions);

    /// One entry per tensor. A chunk with a value that is not finite is left out; returns false.
    bool add(std::span<const RowSquares> chunk);

    /// Counts a chunk that has nothing to say; returns false.
    bool leave_out();

    int n_chunks() const { return n_chunks_; }
    int n_left_out() const { return n_left_out_; }
    SensitivityScores scores() const;
    /// Cost from the even (0) or odd (1) chunks alone; zeros where there is none.
    std::vector<std::vector<double>> half(int which) const;

    /// Every bit of the state, for a run that is resumed.
    std::string serialize() const;
    /// Into an object made from the same tensors. Throws Error(bad_file), and is then unchanged.
    void restore(std::string_view bytes);

private:
    struct Sums {  // of one tensor over half of the chunks
        std::vector<double> squares;
        std::vector<double> proxy;
        double proxy_rest = 0.0;
    };
    double estimate(size_t tensor, size_t type, const Sums& sums) const;
    double row_variance(size_t tensor, size_t type, const Sums& sums) const;

    std::vector<SampledRows> tensors_;
    int64_t n_positions_ = 0;
    int n_chunks_ = 0;
    int n_left_out_ = 0;
    std::vector<std::vector<Sums>> halves_;  // [2][tensor]
    // Sums over chunks of each chunk's own estimate and of its square: [tensor][type].
    std::vector<std::vector<double>> chunk_sum_, chunk_square_;
};

/// How far the two halves of the chunks are from agreeing on a plan: each half chooses for itself
/// (`choose` gives an item per tensor), and both choices are priced by all chunks. 0: the choice
/// of either costs as little as that of all. Relative to the cost of the choice of all.
double plan_disagreement(
    const Sensitivity& sensitivity,
    const std::function<std::vector<size_t>(const std::vector<std::vector<double>>&)>& choose);

}  // namespace voodoo::search
