// Error feedback between the blocks of a row: what the encoder of one block of columns got wrong is
// made good in the others, as far as the second moments of the tensor's input allow. The bytes stay
// those of ggml's encoder: the result is a changed source, to be encoded in the plain way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "quant/codec.h"
#include "quant/feedback_factors.h"

namespace voodoo::quant {

struct FeedbackOptions {
    /// Added to the second moments' diagonal, as a share of its mean: holds columns in place that
    /// were hardly ever used, and makes the matrix positive definite.
    double damping = 0.01;
    /// Sweeps of coordinate descent behind the sequential pass; ends early where none helps.
    int n_sweeps = 2;
    /// Blocks narrower than this are encoded together; rounded up to a multiple of the type's
    /// block.
    int64_t min_columns = 32;
    /// Wide blocks are made good in parts of this many columns, at the price of one encoding of the
    /// block for each: a pass or sweep costs block / sub_columns encodings of the tensor.
    int64_t sub_columns = 64;
    FeedbackOrder order = FeedbackOrder::decreasing_diagonal;
};

/// How a type's rows are divided.
FeedbackColumns feedback_columns(ggml_type type, const FeedbackOptions& options);

/// Errors are tr(E H E') with E = source - decoded and H the damped second moments.
struct FeedbackResult {
    bool usable = true;  ///< false where the plain encoding is not usable either, see encode()
    std::string reason;
    double error_plain = 0.0;
    double error_sequential = 0.0;  ///< as encoded block by block, after the sequential pass
    double error = 0.0;             ///< of the bytes that encode() makes of the adjusted rows
    int64_t n_rows_plain = 0;       ///< rows that keep their source, since feedback made them worse
};

/// Encodes by groups of columns g in order from a target T, which starts as the source W:
///   E_g = T_g - What_g,  T_R += E_g H_gR inverse(H_RR)   for the columns R behind g,
/// then coordinate descent, group by group, kept per row where tr(E H E') falls:
///   E = W - What,  T_g = W_g + (sum over other groups o of E_o H_og) inverse(H_gg).
/// Where a block of the type has several groups, it is encoded as a whole for each of them.
///
/// source: n_rows * factors.n() finite floats. importance: n values or null, as for encode().
/// adjusted: [n_rows][n], receives the rows whose plain encoding is the result; the source's rows
/// where feedback doesn't help. encoded: null, or receives that encoding (size_bytes()).
/// factors: made with feedback_columns(type, options); damping, order and columns are theirs, not
/// the options'. A matrix without cross moments (identity, all zero) gives the plain encoding.
///
/// Blocks whose importances are all zero keep their source. Rows are independent: the result does
/// not depend on the number of threads. Memory: about 2 KiB * n per thread (64 rows at a time).
/// Throws Error(interrupted) if cancelled, Error(bad_file) as encode().
FeedbackResult feedback(const Encoder& encoder, ggml_type type, const float* source, int64_t n_rows,
                        const FeedbackFactors& factors, const float* importance, float* adjusted,
                        const FeedbackOptions& options, ThreadPool& pool,
                        const Cancellation* cancellation = nullptr, std::byte* encoded = nullptr);

/// The same with factors made for this one tensor. hessian: see FeedbackFactors.
FeedbackResult feedback(const Encoder& encoder, ggml_type type, const float* source, int64_t n_rows,
                        int64_t n, const float* hessian, const float* importance, float* adjusted,
                        const FeedbackOptions& options, ThreadPool& pool,
                        const Cancellation* cancellation = nullptr, std::byte* encoded = nullptr);

}  // namespace voodoo::quant
