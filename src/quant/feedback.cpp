#include "quant/feedback.h"

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace voodoo::quant {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using Group = FeedbackFactors::Group;
using Block = FeedbackFactors::Block;

/// Rows that go through all steps together: enough for the matrix products, and always the same, so
/// that the sums don't depend on the number of threads.
constexpr int64_t kRows = 64;

/// A change must lower a row's error by this share of the block's own part of it: less is rounding.
constexpr double kMinGain = 1e-5;

struct Job {
    const Encoder& encoder;
    const TypeInfo& info;
    const float* source;
    int64_t n_rows;
    const FeedbackFactors& factors;
    const float* importance;  // in the stored order, or null
    const FeedbackOptions& options;
    const Cancellation* cancellation;
    std::vector<float> group_importance;  // in the order of encoding
    std::vector<uint8_t> frozen;          // per block of the type, in the order of encoding
};

/// Sums of a group of rows.
struct Sums {
    double plain = 0.0;
    double sequential = 0.0;
    double final = 0.0;
    int64_t n_rows_plain = 0;
};

double dot(const float* a, const float* b, int64_t n) {
    const Eigen::Map<const Eigen::VectorXf> x(a, n);
    const Eigen::Map<const Eigen::VectorXf> y(b, n);
    return static_cast<double>(x.dot(y));
}

/// All steps for up to kRows rows. Matrices are in the order of encoding.
class RowGroup {
public:
    RowGroup(const Job& job, int64_t first_row, int64_t n_rows)
        : job_(job),
          n_(job.factors.n()),
          first_row_(first_row),
          n_rows_(n_rows),
          h_(job.factors.damped(), n_, n_),
          forward_(job.factors.forward(), n_, n_),
          failed_(static_cast<size_t>(n_rows), 0) {
        bytes_.resize(size_bytes(job.info.type, n_, n_rows));
    }

    /// Plain encoding of the source; fills source_ and the plain errors.
    EncodeResult encode_plain(Sums& sums) {
        const float* rows = job_.source + first_row_ * n_;
        EncodeResult result = encode_stored(rows);
        if (!result.usable) return result;
        source_.resize(n_rows_, n_);
        job_.factors.to_positions(rows, source_.data(), n_rows_);
        plain_bytes_ = bytes_;
        error_ = source_ - decoded();
        plain_errors_ = row_errors();
        for (const double error : plain_errors_) sums.plain += error;
        return result;
    }

    void sequential_pass(Sums& sums) {
        target_ = source_;
        input_ = source_;
        for (const Block& block : job_.factors.blocks()) {
            const int64_t at = block.position;
            const int64_t next = at + block.width;
            encode_by_groups(block);
            input_.middleCols(at, block.width) = block_;
            error_.middleCols(at, block.width) =
                source_.middleCols(at, block.width) - block_decoded_;
            // With what the block has become in the end: later groups may have moved its scales.
            Matrix targets = target_.middleCols(at, block.width);
            Matrix errors(n_rows_, block.width);
            for (size_t g = block.first_group; g < block.end_group; ++g) {
                push_in_block(block, g, targets, errors);
            }
            target_.rightCols(n_ - next).noalias() +=
                errors * forward_.block(at, next, block.width, n_ - next);
        }
        for (const double error : row_errors()) sums.sequential += error;
    }

    /// Whether a row changed.
    bool sweep() {
        bool changed = false;
        for (const Block& block : job_.factors.blocks()) changed |= improve(block);
        return changed;
    }

    /// Encodes the finished rows, falls back to the source where that is better, and writes both.
    void finish(float* adjusted, std::byte* encoded, Sums& sums) {
        Matrix rows(n_rows_, n_);
        job_.factors.to_stored(input_.data(), rows.data(), n_rows_);
        const float* source = job_.source + first_row_ * n_;
        // A row whose blocks could be encoded is encodable, unless whole-row statistics spoil it.
        const bool usable = encode_stored(rows.data()).usable;
        if (usable) error_ = source_ - decoded();
        const std::vector<double> errors = usable ? row_errors() : plain_errors_;
        const size_t row_size = row_bytes(job_.info.type, n_);
        for (int64_t r = 0; r < n_rows_; ++r) {
            const auto i = static_cast<size_t>(r);
            const bool keep = usable && failed_[i] == 0 && errors[i] <= plain_errors_[i];
            sums.final += keep ? errors[i] : plain_errors_[i];
            sums.n_rows_plain += keep ? 0 : 1;
            std::memcpy(adjusted + r * n_, (keep ? rows.data() : source) + r * n_,
                        static_cast<size_t>(n_) * sizeof(float));
            if (encoded != nullptr) {
                std::memcpy(encoded + i * row_size,
                            (keep ? bytes_ : plain_bytes_).data() + i * row_size, row_size);
            }
        }
    }

private:
    /// Encodes rows that are in the stored order into bytes_.
    EncodeResult encode_stored(const float* rows) {
        return encode_rows(job_.encoder, job_.info.type, rows, {n_, job_.n_rows, 1}, first_row_,
                           n_rows_, job_.importance, bytes_.data(), pool_, job_.cancellation);
    }

    /// bytes_ as values in the order of encoding.
    Matrix decoded() const {
        Matrix stored(n_rows_, n_);
        to_float(job_.info.type, bytes_.data(), stored.data(), stored.size());
        Matrix result(n_rows_, n_);
        job_.factors.to_positions(stored.data(), result.data(), n_rows_);
        return result;
    }

    /// e H e' of every row of error_: each pair of groups once.
    std::vector<double> row_errors() const {
        std::vector<double> errors(static_cast<size_t>(n_rows_), 0.0);
        Matrix product;
        for (const Block& block : job_.factors.blocks()) {
            const int64_t at = block.position;
            const int64_t next = at + block.width;
            const auto own = error_.middleCols(at, block.width);
            product.noalias() = own * h_.block(at, at, block.width, block.width);
            if (next < n_) {
                product.noalias() += 2.0f * (error_.rightCols(n_ - next) *
                                             h_.block(next, at, n_ - next, block.width));
            }
            for (int64_t r = 0; r < n_rows_; ++r) {
                errors[static_cast<size_t>(r)] +=
                    dot(product.row(r).data(), error_.row(r).data() + at, block.width);
            }
        }
        return errors;
    }

    /// Writes the error of a block's group g, as block_decoded_ has it, into `errors`, and moves
    /// the targets of the block's later groups by it.
    void push_in_block(const Block& block, size_t g, Matrix& targets, Matrix& errors) const {
        const Group& group = job_.factors.groups()[g];
        const int64_t at = group.position - block.position;
        const int64_t next = at + group.width;
        errors.middleCols(at, group.width) =
            targets.middleCols(at, group.width) - block_decoded_.middleCols(at, group.width);
        targets.rightCols(block.width - next).noalias() +=
            errors.middleCols(at, group.width) *
            forward_.block(group.position, block.position + next, group.width, block.width - next);
    }

    /// Encodes a block's targets, again after each group's error has moved the later ones. Leaves
    /// in block_ what was encoded last.
    void encode_by_groups(const Block& block) {
        Matrix targets = target_.middleCols(block.position, block.width);
        Matrix errors(n_rows_, block.width);
        for (size_t g = block.first_group; g < block.end_group; ++g) {
            block_ = targets;
            encode_block(block);
            push_in_block(block, g, targets, errors);
        }
    }

    /// Encodes block_, the columns of a block, into block_decoded_. Puts the source's values back
    /// into block_ where nothing else can be encoded; a row that can't be encoded at all counts as
    /// failed.
    void encode_block(const Block& block) {
        const int64_t size = job_.info.block_size;
        for (int64_t at = 0; at < block.width; at += size) {
            if (job_.frozen[static_cast<size_t>((block.position + at) / size)] == 0) continue;
            block_.middleCols(at, size) = source_.middleCols(block.position + at, size);
        }
        block_decoded_.resize(n_rows_, block.width);
        if (encode_block_rows(block, 0, n_rows_)) return;
        for (int64_t r = 0; r < n_rows_; ++r) {
            if (encode_block_rows(block, r, 1)) continue;
            block_.row(r) = source_.row(r).segment(block.position, block.width);
            if (encode_block_rows(block, r, 1)) continue;
            failed_[static_cast<size_t>(r)] = 1;
            block_decoded_.row(r) = block_.row(r);
        }
    }

    bool encode_block_rows(const Block& block, int64_t first, int64_t n_rows) {
        const float* importance =
            job_.importance == nullptr ? nullptr : job_.group_importance.data() + block.position;
        block_bytes_.resize(size_bytes(job_.info.type, block.width, n_rows));
        if (!encode(job_.encoder, job_.info.type, block_.row(first).data(),
                    {block.width, n_rows, 1}, importance, block_bytes_.data(), pool_,
                    job_.cancellation)
                 .usable) {
            return false;
        }
        to_float(job_.info.type, block_bytes_.data(), block_decoded_.row(first).data(),
                 n_rows * block.width);
        return true;
    }

    /// One step of coordinate descent for each group of a block.
    bool improve(const Block& block) {
        const int64_t at = block.position;
        const int64_t width = block.width;
        const int64_t next = at + width;
        // The pull of the other blocks, and below of the other groups. The own part is left out, so
        // that it is exactly zero where there are no cross moments.
        Matrix pull = Matrix::Zero(n_rows_, width);
        if (at > 0) pull.noalias() += error_.leftCols(at) * h_.block(0, at, at, width);
        if (next < n_) {
            pull.noalias() += error_.rightCols(n_ - next) * h_.block(next, at, n_ - next, width);
        }
        bool changed = false;
        for (size_t g = block.first_group; g < block.end_group; ++g) {
            const Group& group = job_.factors.groups()[g];
            const ConstMap inverse(job_.factors.inverse(g), group.width, group.width);
            const int64_t in_block = group.position - at;
            Matrix others = error_.middleCols(at, width);
            others.middleCols(in_block, group.width).setZero();
            Matrix group_pull = pull.middleCols(in_block, group.width);
            group_pull.noalias() += others * h_.block(at, group.position, width, group.width);
            block_ = input_.middleCols(at, width);
            block_.middleCols(in_block, group.width) =
                source_.middleCols(group.position, group.width);
            block_.middleCols(in_block, group.width).noalias() += group_pull * inverse;
            changed |= try_block(block, pull);
        }
        return changed;
    }

    /// Encodes block_ and keeps the rows whose error falls. pull: of the other blocks.
    bool try_block(const Block& block, const Matrix& pull) {
        const int64_t at = block.position;
        const int64_t width = block.width;
        encode_block(block);
        const Matrix after = source_.middleCols(at, width) - block_decoded_;
        const Matrix before = error_.middleCols(at, width);
        const auto own = h_.block(at, at, width, width);
        const Matrix own_after = after * own;
        const Matrix own_before = before * own;
        bool changed = false;
        for (int64_t r = 0; r < n_rows_; ++r) {
            const float* a = after.row(r).data();
            const float* b = before.row(r).data();
            const double part = dot(own_before.row(r).data(), b, width);
            const double delta =
                dot(own_after.row(r).data(), a, width) - part +
                2.0 * (dot(pull.row(r).data(), a, width) - dot(pull.row(r).data(), b, width));
            if (!(delta < -kMinGain * part)) continue;
            changed = true;
            error_.row(r).segment(at, width) = after.row(r);
            input_.row(r).segment(at, width) = block_.row(r);
        }
        return changed;
    }

    const Job& job_;
    int64_t n_;
    int64_t first_row_;
    int64_t n_rows_;
    ConstMap h_;
    ConstMap forward_;
    ThreadPool pool_{1};  // starts no thread: for calls that want one
    Matrix source_;
    Matrix target_;
    Matrix input_;  // what is handed to the encoder in the end
    Matrix error_;  // source - decoded
    Matrix block_;
    Matrix block_decoded_;
    std::vector<std::byte> bytes_;
    std::vector<std::byte> plain_bytes_;
    std::vector<std::byte> block_bytes_;
    std::vector<double> plain_errors_;
    std::vector<uint8_t> failed_;
};

/// Importances and all-zero blocks of them in the order of encoding.
void prepare_importance(Job& job) {
    const int64_t n = job.factors.n();
    const int64_t block = job.info.block_size;
    job.frozen.assign(static_cast<size_t>(n / block), 0);
    if (job.importance == nullptr) return;
    job.group_importance.resize(static_cast<size_t>(n));
    job.factors.to_positions(job.importance, job.group_importance.data(), 1);
    if (job.info.imatrix == ImatrixNeed::none) return;
    for (int64_t b = 0; b < n / block; ++b) {
        const auto begin = job.group_importance.begin() + b * block;
        const bool zero = std::all_of(begin, begin + block, [](float x) { return x == 0.0f; });
        job.frozen[static_cast<size_t>(b)] = zero ? 1 : 0;
    }
}

/// Where there is nothing to feed back.
FeedbackResult plain_result(const Job& job, float* adjusted, ThreadPool& pool, std::byte* encoded) {
    const int64_t n = job.factors.n();
    const MatrixShape shape{n, job.n_rows, 1};
    std::copy_n(job.source, shape.n_elements(), adjusted);
    std::vector<std::byte> bytes;
    if (encoded == nullptr) {
        bytes.resize(size_bytes(job.info.type, n, job.n_rows));
        encoded = bytes.data();
    }
    const EncodeResult result = encode(job.encoder, job.info.type, job.source, shape,
                                       job.importance, encoded, pool, job.cancellation);
    FeedbackResult plain;
    plain.usable = result.usable;
    plain.reason = result.reason;
    plain.n_rows_plain = job.n_rows;
    return plain;
}

}  // namespace

FeedbackColumns feedback_columns(ggml_type type, const FeedbackOptions& options) {
    const int64_t size = type_info(type).block_size;
    const int64_t block = std::max<int64_t>(1, (options.min_columns + size - 1) / size) * size;
    const int64_t sub = std::max(options.sub_columns, options.min_columns);
    return {block, std::clamp<int64_t>(sub, 1, block)};
}

FeedbackResult feedback(const Encoder& encoder, ggml_type type, const float* source, int64_t n_rows,
                        const FeedbackFactors& factors, const float* importance, float* adjusted,
                        const FeedbackOptions& options, ThreadPool& pool,
                        const Cancellation* cancellation, std::byte* encoded) {
    const TypeInfo& info = type_info(type);
    const int64_t n = factors.n();
    VOODOO_CHECK(n % info.block_size == 0 && factors.columns().block % info.block_size == 0,
                 "{} in blocks of {} of {} columns", info.name, factors.columns().block, n);
    Job job{encoder, info, source, n_rows, factors, importance, options, cancellation, {}, {}};
    prepare_importance(job);
    if (factors.is_zero()) return plain_result(job, adjusted, pool, encoded);

    const int64_t n_groups = (n_rows + kRows - 1) / kRows;
    std::vector<Sums> sums(static_cast<size_t>(n_groups));
    std::vector<std::string> reasons(static_cast<size_t>(n_groups));
    const size_t row_size = row_bytes(type, n);
    pool.parallel_for(n_groups, 1, [&](int64_t g, int64_t, int) {
        const int64_t first = g * kRows;
        RowGroup rows(job, first, std::min(kRows, n_rows - first));
        Sums& sum = sums[static_cast<size_t>(g)];
        const EncodeResult plain = rows.encode_plain(sum);
        if (!plain.usable) {
            reasons[static_cast<size_t>(g)] = plain.reason;
            return;
        }
        rows.sequential_pass(sum);
        for (int i = 0; i < options.n_sweeps && rows.sweep(); ++i) {
        }
        rows.finish(adjusted + first * n,
                    encoded == nullptr ? nullptr : encoded + static_cast<size_t>(first) * row_size,
                    sum);
    });

    FeedbackResult result;
    for (const std::string& reason : reasons) {
        if (reason.empty()) continue;
        result.usable = false;
        result.reason = reason;
        result.n_rows_plain = n_rows;
        std::copy_n(source, n_rows * n, adjusted);
        return result;
    }
    for (const Sums& sum : sums) {
        result.error_plain += sum.plain;
        result.error_sequential += sum.sequential;
        result.error += sum.final;
        result.n_rows_plain += sum.n_rows_plain;
    }
    return result;
}

FeedbackResult feedback(const Encoder& encoder, ggml_type type, const float* source, int64_t n_rows,
                        int64_t n, const float* hessian, const float* importance, float* adjusted,
                        const FeedbackOptions& options, ThreadPool& pool,
                        const Cancellation* cancellation, std::byte* encoded) {
    const FeedbackFactors factors(hessian, n, feedback_columns(type, options), options.damping,
                                  options.order, pool, cancellation);
    return feedback(encoder, type, source, n_rows, factors, importance, adjusted, options, pool,
                    cancellation, encoded);
}

}  // namespace voodoo::quant
