// Kernels over a tensor's encoded candidates that the training engine runs at every step: decode
// and mix, contract with a weight gradient, and the errors that pruning and baselines use. They
// decode in pieces that stay in the first-level cache.
//
// Each has two forms: over a ThreadPool, and over a range of row blocks for callers that bring
// their own threads (ggml_custom ops get ith/nth). Both give bit-identical results whatever the
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "quant/types.h"

namespace voodoo::quant {

/// One encoded candidate of a tensor, borrowed. row_size_bytes is the distance between rows.
struct CandidateView {
    ggml_type type = GGML_TYPE_F32;
    const std::byte* data = nullptr;
    uint64_t row_size_bytes = 0;
};

/// A view of contiguous rows.
CandidateView make_view(ggml_type type, const std::byte* data, int64_t n_per_row);

/// Rows per block of work: block b holds rows [b * kRowBlock, ...) of one matrix; blocks never
/// cross a matrix.
inline constexpr int64_t kRowBlock = 32;
/// Number of row blocks of a tensor: n_mat * ceil(n_rows / kRowBlock).
int64_t n_row_blocks(const MatrixShape& shape);

/// Where mix writes. Either may be null.
struct MixOutput {
    float* rows = nullptr;        ///< [n_mat][n_rows][n_per_row]
    float* transposed = nullptr;  ///< [n_mat][n_per_row][n_rows]
};
struct MixOutputBf16 {
    ggml_bf16_t* rows = nullptr;
    ggml_bf16_t* transposed = nullptr;
};

/// W = sum_k p_k decode(k). Candidates with p_k == 0 are not read; a single one with p = 1 is its
/// plain decoding. The BF16 form rounds the finished F32 sum to nearest even.
void mix(std::span<const CandidateView> views, std::span<const float> p, const MatrixShape& shape,
         const MixOutput& out, ThreadPool& pool);
void mix(std::span<const CandidateView> views, std::span<const float> p, const MatrixShape& shape,
         const MixOutputBf16& out, ThreadPool& pool);
/// Row blocks [block_begin, block_end) only, on the calling thread; disjoint ranges may run at the
/// same time.
void mix_blocks(std::span<const CandidateView> views, std::span<const float> p,
                const MatrixShape& shape, const MixOutput& out, int64_t block_begin,
                int64_t block_end);
void mix_blocks(std::span<const CandidateView> views, std::span<const float> p,
                const MatrixShape& shape, const MixOutputBf16& out, int64_t block_begin,
                int64_t block_end);

/// c_k = <dW, W_k> and, where row_sums is not null, r_k[row] = sum over columns of dW * W_k.
/// dw: [n_mat][n_rows][n_per_row]; c: K values, overwritten; row_sums: [K][total_rows] or null.
/// Products are added in float within a piece of a row, in double beyond it, in a fixed order.
void contract(std::span<const CandidateView> views, const float* dw, const MatrixShape& shape,
              double* c, float* row_sums, ThreadPool& pool);
/// Row blocks [block_begin, block_end): writes partial[block * K + k] (partial: [n_row_blocks][K]).
void contract_blocks(std::span<const CandidateView> views, const float* dw,
                     const MatrixShape& shape, double* partial, float* row_sums,
                     int64_t block_begin, int64_t block_end);
/// Adds the blocks' partial sums in order: c_k = sum_b partial[b * K + k].
void sum_partials(const double* partial, int64_t n_blocks, int64_t n_candidates, double* c);

/// Importance-weighted squared errors against a reference (any type of the table, F32 included):
/// error_k = sum over rows and columns j of w_j (W_k - W_ref)^2; `reference` receives sum w_j
/// W_ref^2.
struct ErrorMoments {
    std::vector<double> error;
    double reference = 0.0;
};
/// importance: n_per_row * n_mat values, or null for all ones. Non-finite results are returned as
/// they are.
ErrorMoments error_moments(std::span<const CandidateView> views, const CandidateView& reference,
                           const MatrixShape& shape, const float* importance, ThreadPool& pool);

}  // namespace voodoo::quant
