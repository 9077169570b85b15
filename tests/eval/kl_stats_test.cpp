#include "eval/kl_stats.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace voodoo::eval {
namespace {

TEST(TeacherRow, EncodesLogProbabilitiesInSteps) {
    // Probabilities 1/8, 1/8, 1/4, 1/2.
    const std::vector<float> logits = {0.0f, 0.0f, std::log(2.0f), std::log(4.0f)};
    std::vector<uint16_t> codes(4);
    const TeacherRow row = encode_teacher_row(logits, codes);
    EXPECT_FLOAT_EQ(row.scale, std::log(4.0f) / 65535.0f);
    EXPECT_FLOAT_EQ(row.min_log_prob, -std::log(8.0f));
    EXPECT_EQ(codes[0], 0);
    EXPECT_EQ(codes[3], 65535);
    EXPECT_NEAR(codes[2], 32767.5, 0.6);
    EXPECT_NEAR(row.log_prob(2), -std::log(4.0f), 2e-5);
}

TEST(TeacherRow, ClipsSixteenBelowTheMaximum) {
    const std::vector<float> logits = {0.0f, -10.0f, -20.0f,
                                       -std::numeric_limits<float>::infinity()};
    std::vector<uint16_t> codes(4);
    const TeacherRow row = encode_teacher_row(logits, codes);
    EXPECT_FLOAT_EQ(row.scale, 16.0f / 65535.0f);
    EXPECT_EQ(codes[0], 65535);
    EXPECT_NEAR(codes[1], 6.0 / 16.0 * 65535.0, 1.0);
    EXPECT_EQ(codes[2], 0);
    EXPECT_EQ(codes[3], 0);
}

TEST(TeacherRow, OfEqualLogitsIsUniform) {
    std::vector<uint16_t> codes(4, 7);
    const TeacherRow row = encode_teacher_row(std::vector<float>(4, 3.0f), codes);
    EXPECT_EQ(row.scale, 0.0f);
    EXPECT_FLOAT_EQ(row.log_prob(2), -std::log(4.0f));
}

TEST(ScoreRow, MatchesAHandComputedDivergence) {
    // p = (1/8, 1/8, 1/4, 1/2), q uniform: KL = sum p ln(4 p) = 2/8 ln(1/2) + 1/4 ln 1 + 1/2 ln 2 =
    // 1/4 ln 2.
    const std::vector<float> teacher = {0.0f, 0.0f, std::log(2.0f), std::log(4.0f)};
    std::vector<uint16_t> codes(4);
    const TeacherRow row = encode_teacher_row(teacher, codes);
    const TokenScore score = score_row(std::vector<float>(4, 1.0f), row, 3);
    EXPECT_NEAR(score.kl_nats, 0.25 * std::log(2.0), 1e-5);
    EXPECT_NEAR(score.nll, std::log(4.0), 1e-6);
    EXPECT_NEAR(score.nll_base, std::log(2.0), 1e-6);
    EXPECT_NEAR(score.p_diff, -0.25, 1e-6);
    EXPECT_FALSE(score.same_top);
    EXPECT_TRUE(score_row(teacher, row, 0).same_top);
    EXPECT_NEAR(score_row(teacher, row, 0).kl_nats, 0.0, 1e-5);
}

TEST(ScoreRow, SkipsTeacherProbabilitiesBelowExpOfMinusSixteen) {
    // The second token's log-probability is clipped to just below -16, so it counts for nothing
    // however wrong q is.
    const std::vector<float> teacher = {0.0f, -30.0f};
    std::vector<uint16_t> codes(2);
    TeacherRow row = encode_teacher_row(teacher, codes);
    row.min_log_prob -= 0.001f;
    EXPECT_NEAR(score_row(std::vector<float>{0.0f, -1000.0f}, row, 0).kl_nats, -0.001, 2e-4);
}

TEST(ScoreRow, RefusesATokenOutsideTheVocabulary) {
    std::vector<uint16_t> codes(2);
    const TeacherRow row = encode_teacher_row(std::vector<float>{0.0f, 1.0f}, codes);
    EXPECT_THROW(score_row(std::vector<float>{0.0f, 1.0f}, row, 2), Error);
}

TEST(Percentile, InterpolatesLinearly) {
    const std::vector<float> sorted = {0.0f, 1.0f, 2.0f, 4.0f, 8.0f};
    EXPECT_EQ(percentile(sorted, 0.0f), 0.0f);
    EXPECT_EQ(percentile(sorted, 0.5f), 2.0f);
    EXPECT_FLOAT_EQ(percentile(sorted, 0.9f), 0.4f * 4.0f + 0.6f * 8.0f);
    EXPECT_EQ(percentile(sorted, 1.0f), 8.0f);
    EXPECT_EQ(percentile(std::vector<float>{5.0f}, 0.9f), 5.0f);
}

TEST(Median, AveragesTheMiddleTwo) {
    EXPECT_EQ(median(std::vector<float>{1.0f, 2.0f, 9.0f}), 2.0f);
    EXPECT_EQ(median(std::vector<float>{1.0f, 2.0f, 4.0f, 9.0f}), 3.0f);
}

TEST(MeanAndError, AreThoseOfTheSample) {
    double sum = 0.0;
    double squares = 0.0;
    for (int i = 1; i <= 11; ++i) {
        sum += i;
        squares += i * i;
    }
    const Estimate e = mean_and_error(sum, squares, 11);
    EXPECT_DOUBLE_EQ(e.value, 6.0);
    EXPECT_DOUBLE_EQ(e.error, 1.0);  // variance 110 / 11 = 10, over n - 1 = 10
    EXPECT_EQ(mean_and_error(sum, squares, 10).error, 0.0);
    EXPECT_EQ(mean_and_error(0.0, 0.0, 0).value, 0.0);
}

TEST(Statistics, MatchHandComputedFigures) {
    std::vector<TokenScore> scores(12);
    for (size_t i = 0; i < scores.size(); ++i) {
        scores[i].nll = i % 2 == 0 ? 1.0f : 3.0f;
        scores[i].nll_base = i % 2 == 0 ? 0.5f : 1.5f;
        scores[i].kl_nats = i % 2 == 0 ? 0.1 : 0.3;
        scores[i].p_diff = i % 2 == 0 ? -0.2f : 0.1f;
        scores[i].same_top = i < 9;
    }
    const KlStatistics s = kl_statistics(scores);
    EXPECT_EQ(s.n_tokens, 12u);
    EXPECT_NEAR(s.ppl.value, std::exp(2.0), 1e-9);
    EXPECT_NEAR(s.ppl.error, std::exp(2.0) * std::sqrt(1.0 / 11.0), 1e-9);
    EXPECT_NEAR(s.ppl_base.value, std::exp(1.0), 1e-9);
    EXPECT_NEAR(s.ln_ppl_ratio.value, 1.0, 1e-12);
    // Fully correlated: the error of the difference is the difference of the errors.
    EXPECT_NEAR(s.ln_ppl_correlation, 1.0, 1e-9);
    EXPECT_NEAR(s.ln_ppl_ratio.error, std::sqrt(1.0 / 11.0) - std::sqrt(0.25 / 11.0), 1e-9);
    EXPECT_NEAR(s.ppl_ratio.value, std::exp(1.0), 1e-9);
    EXPECT_NEAR(s.mean_kl.value, 0.2, 1e-12);
    EXPECT_NEAR(s.mean_kl.error, std::sqrt(0.01 / 11.0), 1e-9);
    EXPECT_NEAR(s.kl.median, 0.2, 1e-6);
    EXPECT_NEAR(s.kl.max, 0.3, 1e-6);
    EXPECT_NEAR(s.mean_p_diff.value, -0.05, 1e-7);
    EXPECT_NEAR(s.rms_p_diff.value, std::sqrt(0.025), 1e-7);
    EXPECT_NEAR(s.same_top.value, 0.75, 1e-12);
    EXPECT_NEAR(s.same_top.error, std::sqrt(0.75 * 0.25 / 11.0), 1e-12);
}

TEST(Statistics, SayWhenSomethingIsNotFinite) {
    std::vector<TokenScore> scores(12);
    scores[5].kl_nats = std::nan("");
    const KlStatistics s = kl_statistics(scores);
    EXPECT_EQ(s.n_nonfinite, 1u);
    EXPECT_TRUE(std::isnan(s.mean_kl.value));
    EXPECT_TRUE(std::isnan(s.kl.median));
}

}  // namespace
}  // namespace voodoo::eval
