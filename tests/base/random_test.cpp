#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace voodoo {
namespace {

TEST(Random, SameSeedAndStreamGiveTheSameNumbers) {
    Random a(7, "x"), b(7, "x"), other_stream(7, "y"), other_seed(8, "x");
    const uint64_t first = a.bits();
    EXPECT_EQ(first, b.bits());
    EXPECT_NE(first, other_stream.bits());
    EXPECT_NE(first, other_seed.bits());
}

TEST(Random, MomentsOfUniformAndNormalAreRight) {
    Random random(1, "moments");
    double sum = 0, sum_normal = 0, sum_square = 0;
    const int n = 200000;
    for (int i = 0; i < n; ++i) {
        const double u = random.uniform();
        ASSERT_GE(u, 0.0);
        ASSERT_LT(u, 1.0);
        sum += u;
        const double z = random.normal();
        sum_normal += z;
        sum_square += z * z;
    }
    EXPECT_NEAR(sum / n, 0.5, 0.005);
    EXPECT_NEAR(sum_normal / n, 0.0, 0.01);
    EXPECT_NEAR(sum_square / n, 1.0, 0.02);
}

TEST(Random, BelowCoversItsRangeEvenly) {
    Random random(1, "below");
    int counts[3] = {};
    for (int i = 0; i < 30000; ++i) ++counts[random.below(3)];
    for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

}  // namespace
}  // namespace voodoo
