// The random cotangent of the second-order scores.
#include "engine/fisher.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace voodoo::engine {
namespace {

std::vector<float> softmax(const std::vector<float>& logits) {
    std::vector<float> p;
    float sum = 0;
    for (const float x : logits) p.push_back(std::exp(x));
    for (const float x : p) sum += x;
    for (float& x : p) x /= sum;
    return p;
}

TEST(FisherProbe, HasTheSoftmaxHessianAsItsCovariance) {
    const std::vector<float> logits = {0.5F, -1.0F, 2.0F, 0.0F, 1.0F};
    const std::vector<float> p = softmax(logits);
    const size_t n = logits.size();
    ThreadPool pool(2);
    constexpr int kProbes = 20000;
    std::vector<double> second(n * n), first(n);
    for (int i = 0; i < kProbes; ++i) {
        FisherProbe probe(static_cast<int64_t>(n), 0, 7, static_cast<uint64_t>(i), pool);
        std::vector<float> v = logits;
        probe.add(0, 0, 1, v.data(), true);
        ASSERT_TRUE(probe.finite());
        ASSERT_NEAR(std::accumulate(v.begin(), v.end(), 0.0F), 0.0F, 1e-5F)
            << "a constant added to all logits changes nothing";
        for (size_t a = 0; a < n; ++a) {
            first[a] += static_cast<double>(v[a]) / kProbes;
            for (size_t b = 0; b < n; ++b)
                second[a * n + b] +=
                    static_cast<double>(v[a]) * static_cast<double>(v[b]) / kProbes;
        }
    }
    for (size_t a = 0; a < n; ++a) {
        EXPECT_NEAR(first[a], 0.0, 0.02);
        for (size_t b = 0; b < n; ++b) {
            const double hessian = static_cast<double>((a == b ? p[a] : 0.0F) - p[a] * p[b]);
            EXPECT_NEAR(second[a * n + b], hessian, 0.01) << a << " " << b;
        }
    }
}

TEST(FisherProbe, SkipsTheFirstPositionsAndDependsOnlyOnSeedSequenceAndPosition) {
    constexpr int64_t kVocab = 100, kTokens = 6;
    std::vector<float> logits(kVocab * kTokens);
    Random random(1, "logits");
    for (float& x : logits) x = static_cast<float>(random.normal());
    const auto run = [&](uint64_t seed, uint64_t sequence, int64_t first, int threads) {
        ThreadPool pool(threads);
        FisherProbe probe(kVocab, 2, seed, sequence, pool);
        std::vector<float> v(logits.begin() + first * kVocab, logits.end());
        probe.add(0, first, kTokens - first, v.data(), true);
        return v;
    };
    const auto all = run(1, 0, 0, 1);
    for (int64_t i = 0; i < 2 * kVocab; ++i) ASSERT_EQ(all[static_cast<size_t>(i)], 0.0F);
    EXPECT_NE(all[2 * kVocab], 0.0F);
    const auto slice = run(1, 0, 4, 2);
    EXPECT_EQ(slice, std::vector<float>(all.begin() + 4 * kVocab, all.end()));
    EXPECT_NE(run(2, 0, 0, 1), all);
    EXPECT_NE(run(1, 1, 0, 1), all);
}

TEST(FisherProbe, ReportsLogitsThatAreNotFinite) {
    ThreadPool pool(1);
    FisherProbe probe(3, 0, 1, 0, pool);
    std::vector<float> logits = {0.0F, NAN, 1.0F};
    probe.add(0, 0, 1, logits.data(), true);
    EXPECT_FALSE(probe.finite());
}

}  // namespace
}  // namespace voodoo::engine
