#include "quant/feedback_factors.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace voodoo::quant {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMap = Eigen::Map<FloatMatrix>;

[[noreturn]] void not_positive_definite() {
    throw Error(ErrorKind::bad_file, "the second moments are not positive definite", {},
                "measure them again, or use more damping");
}

/// Upper triangular U with block = U U'.
Matrix reverse_cholesky(const Matrix& block) {
    // Turned by 180 degrees it is the usual factorization, lower times upper.
    const Eigen::LLT<Matrix> llt(block.reverse());
    if (llt.info() != Eigen::Success) not_positive_definite();
    const Matrix lower = llt.matrixL();
    Matrix upper = lower.reverse();
    // A tiny negative pivot may pass as a NaN.
    if (!upper.allFinite()) not_positive_definite();
    return upper;
}

std::vector<double> checked_diagonal(const float* hessian, int64_t n, ThreadPool& pool) {
    std::vector<double> diagonal(static_cast<size_t>(n));
    std::atomic<bool> good{true};
    pool.parallel_for(n, 64, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            bool finite = true;
            for (int64_t j = 0; j < n; ++j) finite &= std::isfinite(hessian[i * n + j]);
            diagonal[static_cast<size_t>(i)] = hessian[i * n + i];
            if (!finite || hessian[i * n + i] < 0.0f) good.store(false);
        }
    });
    if (!good.load()) {
        throw Error(ErrorKind::bad_file,
                    "the second moments have a value that is not finite, or a negative diagonal",
                    {}, "measure them again");
    }
    return diagonal;
}

bool all_zero(const float* values, int64_t n) {
    return std::all_of(values, values + n, [](float x) { return x == 0.0f; });
}

}  // namespace

FeedbackFactors::FeedbackFactors(const float* hessian, int64_t n, FeedbackColumns columns,
                                 double damping, FeedbackOrder order, ThreadPool& pool,
                                 const Cancellation* cancellation)
    : n_(n), columns_(columns) {
    VOODOO_CHECK(n > 0 && columns.group > 0 && columns.group <= columns.block,
                 "{} columns in blocks of {} and groups of {}", n, columns.block, columns.group);
    VOODOO_CHECK(damping >= 0.0 && std::isfinite(damping), "damping {}", damping);
    const std::vector<double> diagonal = checked_diagonal(hessian, n, pool);
    order_blocks(diagonal, order);
    double sum = 0.0;
    for (const double value : diagonal) sum += value;
    if (sum == 0.0) {
        // No mean to damp by. Off-diagonal values beside a zero diagonal are no second moments.
        if (!all_zero(hessian, n * n)) not_positive_definite();
        is_zero_ = true;
        return;
    }
    damping_ = damping * sum / static_cast<double>(n);
    const auto size = static_cast<size_t>(n * n);
    std::vector<double> work(size);
    damped_.resize(size);
    fill(hessian, work, pool);
    factorize(work, pool, cancellation);
    forward_.assign(size, 0.0f);
    invert(work, pool, cancellation);
    invert_groups(pool);
}

void FeedbackFactors::order_blocks(const std::vector<double>& diagonal, FeedbackOrder order) {
    for (int64_t begin = 0; begin < n_; begin += columns_.block) {
        blocks_.push_back({begin, 0, std::min(columns_.block, n_ - begin), 0, 0});
    }
    const auto mean = [&](const Block& block) {
        double sum = 0.0;
        for (int64_t i = 0; i < block.width; ++i) {
            sum += diagonal[static_cast<size_t>(block.stored + i)];
        }
        return sum / static_cast<double>(block.width);
    };
    if (order == FeedbackOrder::decreasing_diagonal) {
        std::stable_sort(blocks_.begin(), blocks_.end(),
                         [&](const Block& a, const Block& b) { return mean(a) > mean(b); });
    }
    int64_t position = 0;
    for (Block& block : blocks_) {
        block.position = position;
        block.first_group = groups_.size();
        for (int64_t at = 0; at < block.width; at += columns_.group) {
            groups_.push_back(
                {block.stored + at, position + at, std::min(columns_.group, block.width - at)});
        }
        block.end_group = groups_.size();
        position += block.width;
    }
}

void FeedbackFactors::fill(const float* hessian, std::vector<double>& work, ThreadPool& pool) {
    const auto n_groups = static_cast<int64_t>(groups_.size());
    pool.parallel_for(n_groups, 1, [&](int64_t begin, int64_t, int) {
        const Group& rows = groups_[static_cast<size_t>(begin)];
        for (const Group& columns : groups_) {
            for (int64_t r = 0; r < rows.width; ++r) {
                const int64_t i = rows.stored + r;
                double* to = work.data() + (rows.position + r) * n_ + columns.position;
                for (int64_t c = 0; c < columns.width; ++c) {
                    const int64_t j = columns.stored + c;
                    to[c] = 0.5 * (static_cast<double>(hessian[i * n_ + j]) +
                                   static_cast<double>(hessian[j * n_ + i]));
                    if (i == j) to[c] += damping_;
                }
            }
        }
        for (int64_t i = rows.position * n_; i < (rows.position + rows.width) * n_; ++i) {
            damped_[static_cast<size_t>(i)] = static_cast<float>(work[static_cast<size_t>(i)]);
        }
    });
}

/// H = U U', U upper triangular, by groups from the last to the first:
///   U_kk U_kk' = H_kk,  U_ik = H_ik inverse(U_kk)',  H_ij -= U_ik U_jk'  for i <= j < k.
/// Leaves U_ik above the diagonal groups and inverse(U_kk)' in them.
void FeedbackFactors::factorize(std::vector<double>& work, ThreadPool& pool,
                                const Cancellation* cancellation) {
    Map h(work.data(), n_, n_);
    for (size_t k = groups_.size(); k-- > 0;) {
        if (cancellation != nullptr) cancellation->check();
        const Group& group = groups_[k];
        const int64_t at = group.position;
        const int64_t width = group.width;
        const Matrix upper = reverse_cholesky(h.block(at, at, width, width));
        const Matrix inverse =
            upper.triangularView<Eigen::Upper>().solve(Matrix::Identity(width, width));
        h.block(at, at, width, width) = inverse.transpose();
        const auto n_before = static_cast<int64_t>(k);
        pool.parallel_for(n_before, 1, [&](int64_t i, int64_t, int) {
            const Group& g = groups_[static_cast<size_t>(i)];
            auto panel = h.block(g.position, at, g.width, width);
            panel = (panel * inverse.transpose()).eval();
        });
        pool.parallel_for(n_before, 1, [&](int64_t i, int64_t, int) {
            const Group& g = groups_[static_cast<size_t>(i)];
            const int64_t rest = at - g.position;
            h.block(g.position, g.position, g.width, rest).noalias() -=
                h.block(g.position, at, g.width, width) *
                h.block(g.position, at, rest, width).transpose();
        });
    }
}

/// V = inverse(U), column group j from i = j - 1 up to 0:
///   S_ij = sum over i < k <= j of U_ik V_kj,  V_ij = -inverse(U_ii) S_ij.
/// V' is written below the diagonal, so that U stays for the other columns, which then need no
/// order. S_ij is the wanted product: H_BR inverse(H_RR) = U_BR inverse(U_RR), whose column group j
/// is S_Bj.
void FeedbackFactors::invert(std::vector<double>& work, ThreadPool& pool,
                             const Cancellation* cancellation) {
    Map m(work.data(), n_, n_);
    FloatMap forward(forward_.data(), n_, n_);
    const auto n_groups = static_cast<int64_t>(groups_.size());
    pool.parallel_for(n_groups, 1, [&](int64_t index, int64_t, int) {
        // The longest column first, for the balance of threads.
        const auto j = static_cast<size_t>(n_groups - 1 - index);
        const Group& column = groups_[j];
        Matrix sum;
        for (size_t i = j; i-- > 0;) {
            if (cancellation != nullptr) cancellation->check();
            const Group& row = groups_[i];
            const int64_t next = row.position + row.width;
            const int64_t between = column.position + column.width - next;
            sum.noalias() = m.block(row.position, next, row.width, between) *
                            m.block(column.position, next, column.width, between).transpose();
            forward.block(row.position, column.position, row.width, column.width) =
                sum.cast<float>();
            m.block(column.position, row.position, column.width, row.width).noalias() =
                -sum.transpose() * m.block(row.position, row.position, row.width, row.width);
        }
    });
}

void FeedbackFactors::invert_groups(ThreadPool& pool) {
    inverses_.resize(groups_.size());
    const FloatMap damped(damped_.data(), n_, n_);
    pool.parallel_for(static_cast<int64_t>(groups_.size()), 1, [&](int64_t g, int64_t, int) {
        const Group& group = groups_[static_cast<size_t>(g)];
        const Matrix block =
            damped.block(group.position, group.position, group.width, group.width).cast<double>();
        const Eigen::LLT<Matrix> llt(block);
        if (llt.info() != Eigen::Success) not_positive_definite();
        std::vector<float>& out = inverses_[static_cast<size_t>(g)];
        out.resize(static_cast<size_t>(group.width * group.width));
        FloatMap(out.data(), group.width, group.width) =
            llt.solve(Matrix::Identity(group.width, group.width)).cast<float>();
    });
}

void FeedbackFactors::to_positions(const float* stored, float* positions, int64_t n_rows) const {
    for (int64_t r = 0; r < n_rows; ++r) {
        for (const Block& block : blocks_) {
            std::memcpy(positions + r * n_ + block.position, stored + r * n_ + block.stored,
                        static_cast<size_t>(block.width) * sizeof(float));
        }
    }
}

void FeedbackFactors::to_stored(const float* positions, float* stored, int64_t n_rows) const {
    for (int64_t r = 0; r < n_rows; ++r) {
        for (const Block& block : blocks_) {
            std::memcpy(stored + r * n_ + block.stored, positions + r * n_ + block.position,
                        static_cast<size_t>(block.width) * sizeof(float));
        }
    }
}

}  // namespace voodoo::quant
