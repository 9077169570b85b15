// The linear algebra of error feedback: what the second moments of a tensor's input say about how
// an error in some columns is best made good in others. Knows no types and encodes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"

namespace voodoo::quant {

/// Which columns are encoded first.
enum class FeedbackOrder {
    as_stored,
    decreasing_diagonal,  ///< blocks with the largest mean diagonal of the second moments first
};

/// Which columns are encoded together, and which are made good together.
struct FeedbackColumns {
    int64_t block;  ///< encoded at once: a multiple of the type's block size
    int64_t group;  ///< part of a block whose error the rest makes good; at most `block`
    bool operator==(const FeedbackColumns&) const = default;
};

/// Factors of a damped second-moment matrix H, split into blocks of adjacent columns and these into
/// groups. They serve every tensor with that input and types of the same FeedbackColumns. All
/// matrices are row-major, in the order of encoding ("position"), not in the stored order.
/// Immutable; may be shared by threads. Memory: 8 n^2 bytes, while it is made 16 n^2.
class FeedbackFactors {
public:
    /// hessian: n * n second moments E[x x'] of the input (what its two triangles differ by is
    /// averaged out). The last block, and the last group of a block, may be narrower. damping:
    /// added to the diagonal, as a share of its mean. Throws Error(bad_file) if a value is not
    /// finite or the damped matrix is not positive definite, Error(interrupted) if cancelled.
    FeedbackFactors(const float* hessian, int64_t n, FeedbackColumns columns, double damping,
                    FeedbackOrder order, ThreadPool& pool,
                    const Cancellation* cancellation = nullptr);

    /// The matrix is all zero: the input is never used, there is nothing to feed back.
    bool is_zero() const { return is_zero_; }
    int64_t n() const { return n_; }
    FeedbackColumns columns() const { return columns_; }
    /// What was added to every diagonal value.
    double damping() const { return damping_; }

    struct Group {
        int64_t stored;    ///< first column in the tensor
        int64_t position;  ///< first column in the order of encoding
        int64_t width;
    };
    struct Block {
        int64_t stored;
        int64_t position;
        int64_t width;
        size_t first_group;
        size_t end_group;
    };
    /// In the order of encoding.
    const std::vector<Group>& groups() const { return groups_; }
    const std::vector<Block>& blocks() const { return blocks_; }

    /// H with damping, n * n.
    const float* damped() const { return damped_.data(); }
    /// Row group B, columns R behind it: H_BR inverse(H_RR). Zero elsewhere. n * n.
    const float* forward() const { return forward_.data(); }
    /// inverse(H_BB) of group g, width * width.
    const float* inverse(size_t g) const { return inverses_[g].data(); }

    /// Copies rows of n values from the stored order into the order of encoding, and back.
    void to_positions(const float* stored, float* positions, int64_t n_rows) const;
    void to_stored(const float* positions, float* stored, int64_t n_rows) const;

private:
    void order_blocks(const std::vector<double>& diagonal, FeedbackOrder order);
    void fill(const float* hessian, std::vector<double>& work, ThreadPool& pool);
    void factorize(std::vector<double>& work, ThreadPool& pool, const Cancellation* cancellation);
    void invert(std::vector<double>& work, ThreadPool& pool, const Cancellation* cancellation);
    void invert_groups(ThreadPool& pool);

    int64_t n_;
    FeedbackColumns columns_;
    double damping_ = 0.0;
    bool is_zero_ = false;
    std::vector<Group> groups_;
    std::vector<Block> blocks_;
    std::vector<float> damped_;
    std::vector<float> forward_;
    std::vector<std::vector<float>> inverses_;
};

}  // namespace voodoo::quant
