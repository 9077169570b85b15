// The lower convex hull against its definition.
#include "search/hull.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/random.h"

namespace voodoo::search {
namespace {

TEST(LowerHull, HoldsExactlyTheTypesThatArePreferredAtSomePrice) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Random random(seed, "hull");
        std::vector<double> bytes, cost;
        for (int i = 0; i < 9; ++i) {
            bytes.push_back(static_cast<double>(1 + random.below(1000)));
            cost.push_back(random.uniform());
        }
        std::set<size_t> preferred;
        for (int step = -400; step < 400; ++step) {
            const double price = std::pow(10.0, step / 40.0);
            size_t best = 0;
            for (size_t i = 1; i < bytes.size(); ++i) {
                if (cost[i] + price * bytes[i] < cost[best] + price * bytes[best]) best = i;
            }
            preferred.insert(best);
        }
        const std::vector<size_t> hull = lower_hull(bytes, cost);
        // A very narrow range of prices may fall between two steps of the scan.
        for (const size_t i : preferred)
            EXPECT_TRUE(std::find(hull.begin(), hull.end(), i) != hull.end()) << seed << " " << i;
        EXPECT_LE(hull.size(), preferred.size() + 1) << seed;
        for (size_t i = 1; i < hull.size(); ++i) {
            EXPECT_GT(bytes[hull[i]], bytes[hull[i - 1]]);
            EXPECT_LT(cost[hull[i]], cost[hull[i - 1]]);
        }
    }
}

TEST(LowerHull, KeepsOneOfEqualsAndNothingThatCostsMoreBytesForNoGain) {
    EXPECT_EQ(lower_hull(std::vector<double>{1, 1, 2, 3}, std::vector<double>{5, 4, 4, 1}),
              (std::vector<size_t>{1, 3}));
    EXPECT_EQ(lower_hull(std::vector<double>{7}, std::vector<double>{1}), (std::vector<size_t>{0}));
    EXPECT_EQ(lower_hull(std::vector<double>{1, 2, 3}, std::vector<double>{3, 2, 1}),
              (std::vector<size_t>{0, 2}))
        << "a point on the line is never needed";
}

}  // namespace
}  // namespace voodoo::search
