// Definitions as in llama.cpp v0.5.0, tools/perplexity: single precision is kept where that tool
// uses it, since the 16-bit codes make it visible in the tails.
#include "eval/kl_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace voodoo::eval {

namespace {

/// Teacher logits more than this below the maximum are clipped; teacher log-probabilities below
/// -this don't count.
constexpr float kLogRange = 16.0f;

/// log sum exp(logits - max_logit).
float log_sum_exp(std::span<const float> logits, float max_logit) {
    double sum = 0.0;
    for (const float logit : logits) {
        sum += static_cast<double>(std::exp(logit - max_logit));
    }
    return static_cast<float>(std::log(sum));
}

/// Standard error of a difference or ratio's logarithm; rounding may push the variance below zero.
double root(double variance) {
    return std::sqrt(std::max(variance, 0.0));
}

}  // namespace

TeacherRow encode_teacher_row(std::span<const float> logits, std::span<uint16_t> codes) {
    VOODOO_CHECK(!logits.empty() && logits.size() == codes.size(), "{} logits for {} codes",
                 logits.size(), codes.size());
    float max_logit = logits[0];
    float min_logit = logits[0];
    for (const float logit : logits) {
        max_logit = std::max(max_logit, logit);
        min_logit = std::min(min_logit, logit);
    }
    min_logit = std::max(min_logit, max_logit - kLogRange);

    TeacherRow row;
    row.scale = (max_logit - min_logit) / 65535.0f;
    row.min_log_prob = min_logit - max_logit - log_sum_exp(logits, max_logit);
    row.codes = codes;
    if (!(row.scale > 0.0f) || !std::isfinite(row.scale)) {
        std::fill(codes.begin(), codes.end(), uint16_t{0});
        return row;
    }
    const float inverse_scale = 1.0f / row.scale;
    for (size_t i = 0; i < logits.size(); ++i) {
        // Written so that NaN becomes 0. The product of the rounded inverse may exceed the range by
        // an ulp.
        const float code =
            logits[i] > min_logit ? std::nearbyint(inverse_scale * (logits[i] - min_logit)) : 0.0f;
        codes[i] = static_cast<uint16_t>(std::min(code, 65535.0f));
    }
    return row;
}

TokenScore score_row(std::span<const float> student_logits, const TeacherRow& teacher,
                     int32_t next) {
    const size_t n_vocab = student_logits.size();
    VOODOO_CHECK(
        n_vocab == teacher.codes.size() && next >= 0 && static_cast<size_t>(next) < n_vocab,
        "token {} with {} student and {} teacher entries", next, n_vocab, teacher.codes.size());
    float max_logit = student_logits[0];
    size_t top = 0;
    for (size_t i = 1; i < n_vocab; ++i) {
        if (student_logits[i] > max_logit) {
            max_logit = student_logits[i];
            top = i;
        }
    }
    const float log_normalizer = max_logit + log_sum_exp(student_logits, max_logit);

    double kl = 0.0;
    float top_base_log_prob = teacher.log_prob(0);
    size_t top_base = 0;
    for (size_t i = 0; i < n_vocab; ++i) {
        const float log_prob = teacher.log_prob(i);
        if (log_prob > top_base_log_prob) {
            top_base_log_prob = log_prob;
            top_base = i;
        }
        if (log_prob > -kLogRange) {
            kl += static_cast<double>(std::exp(log_prob) *
                                      (log_prob - student_logits[i] + log_normalizer));
        }
    }

    TokenScore score;
    score.nll = log_normalizer - student_logits[static_cast<size_t>(next)];
    score.nll_base = -teacher.log_prob(static_cast<size_t>(next));
    score.kl_nats = kl;
    score.p_diff = std::exp(-score.nll) - std::exp(-score.nll_base);
    score.same_top = top == top_base;
    return score;
}

Estimate mean_and_error(double sum, double sum_of_squares, size_t count) {
    if (count < 1) {
        return {};
    }
    const auto n = static_cast<double>(count);
    Estimate estimate;
    estimate.value = sum / n;
    const double variance = sum_of_squares / n - estimate.value * estimate.value;
    estimate.error = variance > 0.0 && count > 10 ? std::sqrt(variance / (n - 1.0)) : 0.0;
    return estimate;
}

float percentile(std::span<const float> sorted, float fraction) {
    VOODOO_CHECK(!sorted.empty(), "a percentile of nothing");
    if (fraction <= 0.0f) {
        return sorted.front();
    }
    if (fraction >= 1.0f) {
        return sorted.back();
    }
    const float position = fraction * static_cast<float>(sorted.size() - 1);
    const auto below = std::min(static_cast<size_t>(position), sorted.size() - 1);
    const float weight = position - static_cast<float>(below);
    return (1.0f - weight) * sorted[below] +
           weight * sorted[std::min(below + 1, sorted.size() - 1)];
}

float median(std::span<const float> sorted) {
    VOODOO_CHECK(!sorted.empty(), "a median of nothing");
    const size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 0 ? 0.5f * (sorted[half] + sorted[half - 1]) : sorted[half];
}

Distribution distribution(std::vector<float> values) {
    const bool finite =
        std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
    if (values.empty() || !finite) {
        constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
        return {kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN};
    }
    std::sort(values.begin(), values.end());
    const auto at = [&values](float fraction) {
        return static_cast<double>(percentile(values, fraction));
    };
    Distribution d;
    d.min = static_cast<double>(values.front());
    d.p0_1 = at(0.001f);
    d.p1 = at(0.010f);
    d.p5 = at(0.050f);
    d.p10 = at(0.100f);
    d.p25 = at(0.250f);
    d.median = static_cast<double>(median(values));
    d.p75 = at(0.750f);
    d.p90 = at(0.900f);
    d.p95 = at(0.950f);
    d.p99 = at(0.990f);
    d.p99_9 = at(0.999f);
    d.max = static_cast<double>(values.back());
    return d;
}

namespace {

/// Sums over all positions from which every estimate follows.
struct Sums {
    double nll = 0.0;
    double nll2 = 0.0;
    double nll_base = 0.0;
    double nll_base2 = 0.0;
    double nll_nll_base = 0.0;
    double kl = 0.0;
    double kl2 = 0.0;
    double p_diff = 0.0;
    double p_diff2 = 0.0;
    double p_diff4 = 0.0;
    size_t n_same_top = 0;

    void add(const TokenScore& score) {
        const auto q = static_cast<double>(score.nll);
        const auto p = static_cast<double>(score.nll_base);
        const auto diff = static_cast<double>(score.p_diff);
        nll += q;
        nll2 += q * q;
        nll_base += p;
        nll_base2 += p * p;
        nll_nll_base += q * p;
        kl += score.kl_nats;
        kl2 += score.kl_nats * score.kl_nats;
        p_diff += diff;
        p_diff2 += diff * diff;
        p_diff4 += diff * diff * diff * diff;
        n_same_top += score.same_top ? 1 : 0;
    }
};

void fill_perplexities(const Sums& sums, size_t count, KlStatistics& s) {
    const auto n = static_cast<double>(count);
    const Estimate ln_ppl = mean_and_error(sums.nll, sums.nll2, count);
    const Estimate ln_base = mean_and_error(sums.nll_base, sums.nll_base2, count);
    const double covariance =
        count < 10 ? 0.0
                   : (sums.nll_nll_base / n - (sums.nll / n) * (sums.nll_base / n)) / (n - 1.0);

    s.ppl.value = std::exp(ln_ppl.value);
    s.ppl.error = s.ppl.value * ln_ppl.error;
    s.ppl_base.value = std::exp(ln_base.value);
    s.ppl_base.error = s.ppl_base.value * ln_base.error;
    const double errors = ln_ppl.error * ln_base.error;
    s.ln_ppl_correlation = errors > 0.0 ? covariance / errors : 0.0;

    s.ln_ppl_ratio.value = ln_ppl.value - ln_base.value;
    s.ln_ppl_ratio.error =
        root(ln_ppl.error * ln_ppl.error + ln_base.error * ln_base.error - 2.0 * covariance);
    s.ppl_ratio.value = std::exp(s.ln_ppl_ratio.value);
    s.ppl_ratio.error = s.ppl_ratio.value * s.ln_ppl_ratio.error;
    s.ppl_difference.value = s.ppl.value - s.ppl_base.value;
    s.ppl_difference.error = root(s.ppl.error * s.ppl.error + s.ppl_base.error * s.ppl_base.error -
                                  2.0 * s.ppl.value * s.ppl_base.value * covariance);
}

}  // namespace

KlStatistics kl_statistics(std::span<const TokenScore> scores) {
    KlStatistics s;
    s.n_tokens = scores.size();
    Sums sums;
    std::vector<float> kl_values;
    std::vector<float> p_diff_values;
    kl_values.reserve(scores.size());
    p_diff_values.reserve(scores.size());
    for (const TokenScore& score : scores) {
        sums.add(score);
        kl_values.push_back(static_cast<float>(score.kl_nats));
        p_diff_values.push_back(score.p_diff);
        s.n_nonfinite += std::isfinite(score.kl_nats) ? 0 : 1;
    }
    fill_perplexities(sums, scores.size(), s);
    s.mean_kl = mean_and_error(sums.kl, sums.kl2, scores.size());
    s.kl = distribution(std::move(kl_values));
    s.mean_p_diff = mean_and_error(sums.p_diff, sums.p_diff2, scores.size());
    s.p_diff = distribution(std::move(p_diff_values));

    const Estimate mean_square = mean_and_error(sums.p_diff2, sums.p_diff4, scores.size());
    s.rms_p_diff.value = std::sqrt(mean_square.value);
    s.rms_p_diff.error =
        s.rms_p_diff.value > 0.0 ? 0.5 / s.rms_p_diff.value * mean_square.error : 0.0;

    if (!scores.empty()) {
        const auto n = static_cast<double>(scores.size());
        const double same = static_cast<double>(sums.n_same_top) / n;
        s.same_top.value = same;
        s.same_top.error = scores.size() > 1 ? std::sqrt(same * (1.0 - same) / (n - 1.0)) : 0.0;
    }
    return s;
}

}  // namespace voodoo::eval
