#include "engine/loss.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace voodoo::engine {
namespace {

/// log sum exp of n values, in pieces of float sums added in double.
double log_sum_exp(const float* x, int64_t n, float& max) {
    max = x[0];
    for (int64_t i = 1; i < n; ++i) max = std::max(max, x[i]);
    double sum = 0;
    constexpr int64_t kPiece = 1024;
    for (int64_t begin = 0; begin < n; begin += kPiece) {
        const int64_t end = std::min(begin + kPiece, n);
        float piece = 0;
        for (int64_t i = begin; i < end; ++i) piece += std::exp(x[i] - max);
        sum += static_cast<double>(piece);
    }
    return static_cast<double>(max) + std::log(sum);
}

}  // namespace

DistillationLoss::DistillationLoss(std::span<const std::span<const int32_t>> batches,
                                   int n_sequences, int64_t n_vocab, LossWeights weights,
                                   TeacherLogits teacher, ThreadPool& pool, int64_t skip)
    : batches_(batches),
      n_vocab_(n_vocab),
      weights_(weights),
      teacher_(std::move(teacher)),
      pool_(pool),
      skip_(skip) {
    VOODOO_CHECK(!batches.empty() && n_sequences > 0, "a loss over nothing");
    VOODOO_CHECK(weights.kl == 0.0 || teacher_, "a KL term without a teacher");
    sequence_length_ = static_cast<int64_t>(batches[0].size()) / n_sequences;
    const int64_t scored = std::max<int64_t>(0, sequence_length_ - skip);
    const auto n = static_cast<int64_t>(batches.size()) * n_sequences;
    n_scored_ = n * scored;
    n_with_target_ = n * std::max<int64_t>(0, scored - 1);
}

DistillationLoss::Row DistillationLoss::add_row(int batch, int64_t token, float* logits,
                                                const float* teacher, bool want_gradient) const {
    Row row;
    const int64_t position = token % sequence_length_;
    row.scored = position >= skip_;
    row.has_target = row.scored && position + 1 < sequence_length_;
    if (!row.scored) {
        if (want_gradient) std::fill_n(logits, n_vocab_, 0.0F);
        return row;
    }
    float max = 0;
    const double lse = log_sum_exp(logits, n_vocab_, max);
    const int32_t target =
        row.has_target ? batches_[static_cast<size_t>(batch)][static_cast<size_t>(token) + 1] : -1;
    if (row.has_target) row.cross_entropy = lse - static_cast<double>(logits[target]);
    const float ce_scale =
        row.has_target
            ? static_cast<float>(weights_.cross_entropy / static_cast<double>(n_with_target_))
            : 0.0F;
    const auto kl_scale = static_cast<float>(weights_.kl / static_cast<double>(n_scored_));
    const auto shift = static_cast<float>(lse);
    if (teacher != nullptr) {
        float teacher_max = 0;
        const auto teacher_shift = static_cast<float>(log_sum_exp(teacher, n_vocab_, teacher_max));
        double kl = 0;
        for (int64_t v = 0; v < n_vocab_; ++v) {
            const float log_p = teacher[v] - teacher_shift;
            const float p = std::exp(log_p);
            const float log_q = logits[v] - shift;
            kl += static_cast<double>(p * (log_p - log_q));
            if (!want_gradient) continue;
            const float q = std::exp(log_q);
            logits[v] = ce_scale * q + kl_scale * (q - p);
        }
        row.kl = kl;
    } else if (want_gradient) {
        for (int64_t v = 0; v < n_vocab_; ++v) logits[v] = ce_scale * std::exp(logits[v] - shift);
    }
    if (want_gradient && target >= 0) logits[target] -= ce_scale;
    return row;
}

void DistillationLoss::add(int batch, int64_t first, int64_t n, float* logits, bool want_gradient) {
    const std::span<const float> teacher =
        teacher_ ? teacher_(batch, first, n) : std::span<const float>{};
    std::vector<Row> rows(static_cast<size_t>(n));
    pool_.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            const float* t = teacher.empty() ? nullptr : teacher.data() + i * n_vocab_;
            rows[static_cast<size_t>(i)] =
                add_row(batch, first + i, logits + i * n_vocab_, t, want_gradient);
        }
    });
    for (const Row& row : rows) {
        if (!row.scored) continue;
        sums_.kl += row.kl;
        sums_.cross_entropy += row.cross_entropy;
        ++sums_.n_tokens;
        if (row.has_target) ++sums_.n_targets;
        token_kl_.push_back(static_cast<float>(row.kl));
    }
    sums_.finite = std::isfinite(sums_.kl) && std::isfinite(sums_.cross_entropy);
}

double DistillationLoss::value() const {
    return weights_.cross_entropy * sums_.mean_cross_entropy() + weights_.kl * sums_.mean_kl();
}

}  // namespace voodoo::engine
