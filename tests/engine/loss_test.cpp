#include "engine/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace voodoo::engine {
namespace {

constexpr int64_t kVocab = 13;
constexpr int64_t kTokens = 8;  // two sequences of four

struct Case {
    std::vector<int32_t> tokens;
    std::vector<float> student, teacher;

    Case() {
        Random random(3, "loss");
        for (int64_t i = 0; i < kTokens; ++i)
            tokens.push_back(static_cast<int32_t>(random.below(kVocab)));
        for (int64_t i = 0; i < kTokens * kVocab; ++i) {
            student.push_back(static_cast<float>(2 * random.normal()));
            teacher.push_back(static_cast<float>(2 * random.normal()));
        }
    }

    /// In slices of `slice` tokens; returns the gradient in `gradient` if it is not null.
    double run(LossWeights weights, int64_t slice, std::vector<float>* gradient, int64_t skip = 0,
               LossSums* sums = nullptr) const {
        ThreadPool pool(2);
        const std::span<const int32_t> batches[] = {tokens};
        DistillationLoss loss(
            batches, 2, kVocab, weights,
            [&](int, int64_t first, int64_t n) {
                return std::span(teacher).subspan(static_cast<size_t>(first * kVocab),
                                                  static_cast<size_t>(n * kVocab));
            },
            pool, skip);
        std::vector<float> logits = student;
        for (int64_t first = 0; first < kTokens; first += slice)
            loss.add(0, first, slice, logits.data() + first * kVocab, gradient != nullptr);
        if (gradient != nullptr) *gradient = logits;
        if (sums != nullptr) *sums = loss.sums();
        return loss.value();
    }
};

TEST(DistillationLoss, GradientMatchesCentralDifferences) {
    for (const LossWeights weights :
         {LossWeights{1, 0}, LossWeights{0, 1}, LossWeights{0.7, 2.5}}) {
        Case c;
        std::vector<float> gradient;
        c.run(weights, 4, &gradient);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < gradient.size(); ++i) {
            Case moved = c;
            const float h = 1e-2F;
            moved.student[i] = c.student[i] + h;
            const double up = moved.run(weights, 4, nullptr);
            moved.student[i] = c.student[i] - h;
            const double down = moved.run(weights, 4, nullptr);
            const double numeric = (up - down) / (2 * static_cast<double>(h));
            difference += (numeric - static_cast<double>(gradient[i])) *
                          (numeric - static_cast<double>(gradient[i]));
            norm += numeric * numeric;
        }
        EXPECT_GT(norm, 1e-6);
        EXPECT_LT(std::sqrt(difference / norm), 1e-3);
    }
}

TEST(DistillationLoss, MatchesTheDefinitionInDoublePrecision) {
    const Case c;
    LossSums sums;
    c.run({1, 1}, 2, nullptr, 0, &sums);
    double kl = 0, ce = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
        double zs = 0, zt = 0;
        for (int64_t v = 0; v < kVocab; ++v) {
            zs += std::exp(static_cast<double>(c.student[static_cast<size_t>(i * kVocab + v)]));
            zt += std::exp(static_cast<double>(c.teacher[static_cast<size_t>(i * kVocab + v)]));
        }
        for (int64_t v = 0; v < kVocab; ++v) {
            const double s =
                static_cast<double>(c.student[static_cast<size_t>(i * kVocab + v)]) - std::log(zs);
            const double t =
                static_cast<double>(c.teacher[static_cast<size_t>(i * kVocab + v)]) - std::log(zt);
            kl += std::exp(t) * (t - s);
            if (i % 4 != 3 && v == c.tokens[static_cast<size_t>(i) + 1]) ce -= s;
        }
    }
    EXPECT_EQ(sums.n_tokens, 8);
    EXPECT_EQ(sums.n_targets, 6);
    EXPECT_NEAR(sums.kl, kl, 1e-5 * kl);
    EXPECT_NEAR(sums.cross_entropy, ce, 1e-5 * ce);
}

TEST(DistillationLoss, IsTheSameForEverySlice) {
    const Case c;
    EXPECT_DOUBLE_EQ(c.run({1, 1}, 1, nullptr), c.run({1, 1}, 8, nullptr));
}

TEST(DistillationLoss, IsZeroForEqualLogits) {
    Case c;
    c.teacher = c.student;
    EXPECT_NEAR(c.run({0, 1}, 8, nullptr), 0.0, 1e-6);
}

TEST(DistillationLoss, SkippedTokensHaveNoGradient) {
    const Case c;
    std::vector<float> gradient;
    LossSums sums;
    c.run({1, 1}, 4, &gradient, 2, &sums);
    EXPECT_EQ(sums.n_tokens, 4);
    EXPECT_EQ(sums.n_targets, 2);
    for (int64_t i = 0; i < kTokens; ++i) {
        double norm = 0;
        for (int64_t v = 0; v < kVocab; ++v)
            norm += std::abs(static_cast<double>(gradient[static_cast<size_t>(i * kVocab + v)]));
        EXPECT_EQ(norm > 0, i % 4 >= 2) << i;
    }
}

TEST(DistillationLoss, SaysThatItIsNotFinite) {
    Case c;
    c.student[5] = NAN;
    LossSums sums;
    c.run({1, 1}, 8, nullptr, 0, &sums);
    EXPECT_FALSE(sums.finite);
}

}  // namespace
}  // namespace voodoo::engine
