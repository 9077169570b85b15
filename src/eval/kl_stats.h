// The statistics of `llama-perplexity --kl-divergence`, definition by definition, on rows of
// logits. No model here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace voodoo::eval {

/// Log-probabilities of one position under the teacher in 16 bits: log p_i = scale * code_i +
/// min_log_prob, where logits below (maximum - 16) are clipped to it. That is the precision of
/// llama-perplexity's logits file.
struct TeacherRow {
    float scale = 0.0f;
    float min_log_prob = 0.0f;
    std::span<const uint16_t> codes;

    float log_prob(size_t i) const { return scale * static_cast<float>(codes[i]) + min_log_prob; }
};

/// Encodes one row of teacher logits into `codes` (same length) and returns the row that views
/// them.
TeacherRow encode_teacher_row(std::span<const float> logits, std::span<uint16_t> codes);

/// What one scored position contributes.
struct TokenScore {
    /// Negative log-likelihood of the text's next token under the student and under the teacher, in
    /// nats.
    float nll = 0.0f;
    float nll_base = 0.0f;
    /// sum_i p_i (log p_i - log q_i) over teacher probabilities with log p_i > -16, in nats.
    double kl_nats = 0.0;
    /// q(next) - p(next).
    float p_diff = 0.0f;
    /// Student and teacher have the same most probable token.
    bool same_top = false;
};

/// Scores a row of student logits against the teacher's; `next` is the text's next token.
TokenScore score_row(std::span<const float> student_logits, const TeacherRow& teacher,
                     int32_t next);

/// A mean and its standard error.
struct Estimate {
    double value = 0.0;
    double error = 0.0;
};

/// Mean and uncertainty from sums, as llama-perplexity: error 0 for at most 10 values.
Estimate mean_and_error(double sum, double sum_of_squares, size_t count);

/// Linear interpolation between order statistics of ascending `sorted` (not empty), fraction in [0,
/// 1].
float percentile(std::span<const float> sorted, float fraction);
/// Middle value, or the mean of the middle two.
float median(std::span<const float> sorted);

/// Order statistics of one quantity.
struct Distribution {
    double min = 0.0;
    double p0_1 = 0.0;
    double p1 = 0.0;
    double p5 = 0.0;
    double p10 = 0.0;
    double p25 = 0.0;
    double median = 0.0;
    double p75 = 0.0;
    double p90 = 0.0;
    double p95 = 0.0;
    double p99 = 0.0;
    double p99_9 = 0.0;
    double max = 0.0;
};

/// All NaN if a value isn't finite or there is none.
Distribution distribution(std::vector<float> values);

/// All that llama-perplexity prints. Probabilities are fractions, not percent.
struct KlStatistics {
    size_t n_tokens = 0;
    /// Positions with a KL divergence that isn't finite; the figures are NaN then.
    size_t n_nonfinite = 0;
    Estimate mean_kl;
    Distribution kl;
    Estimate mean_p_diff;
    Distribution p_diff;
    Estimate rms_p_diff;
    Estimate same_top;
    Estimate ppl;
    Estimate ppl_base;
    Estimate ln_ppl_ratio;
    Estimate ppl_ratio;
    Estimate ppl_difference;
    /// Correlation of ln PPL(Q) and ln PPL(base).
    double ln_ppl_correlation = 0.0;
};

KlStatistics kl_statistics(std::span<const TokenScore> scores);

}  // namespace voodoo::eval
