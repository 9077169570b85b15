// Paired statistics and the choice of the plan that is exported.
#include "search/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "expect_error.h"

namespace voodoo::search {
namespace {

TEST(ComparePaired, MatchesAHandComputedExample) {
    const std::vector<double> a = {1.0, 2.0, 3.0, 6.0}, b = {2.0, 2.0, 5.0, 7.0};
    const PairedComparison c = compare_paired(a, b);
    EXPECT_EQ(c.n, 4u);
    EXPECT_DOUBLE_EQ(c.mean_a, 3.0);
    EXPECT_DOUBLE_EQ(c.mean_b, 4.0);
    EXPECT_DOUBLE_EQ(c.mean_difference, -1.0);  // differences -1, 0, -2, -1
    EXPECT_NEAR(c.standard_error, std::sqrt(2.0 / 3.0 / 4.0), 1e-15);
    EXPECT_EQ(c.verdict, Verdict::a_better);
    EXPECT_EQ(compare_paired(b, a).verdict, Verdict::b_better);
    EXPECT_EQ(compare_paired(a, b, 3.0).verdict, Verdict::undecided);
}

TEST(ComparePaired, SeesASmallDifferenceUnderLargeCommonNoise) {
    Random random(1, "compare");
    std::vector<double> a, b;
    for (int i = 0; i < 400; ++i) {
        const double difficulty = std::exp(random.normal());
        a.push_back(difficulty);
        b.push_back(difficulty + 0.01 + 0.02 * random.normal());
    }
    EXPECT_EQ(compare_paired(a, b).verdict, Verdict::a_better);
}

TEST(ComparePaired, SaysUndecidedWithoutADifferenceAboutAsOftenAsItShould) {
    Random random(2, "compare");
    int undecided = 0;
    for (int round = 0; round < 400; ++round) {
        std::vector<double> a, b;
        for (int i = 0; i < 100; ++i) {
            a.push_back(random.normal());
            b.push_back(random.normal());
        }
        undecided += compare_paired(a, b).verdict == Verdict::undecided;
    }
    EXPECT_GT(undecided, 360);  // 95 % of 400, minus noise
    EXPECT_LT(undecided, 400);
}

TEST(ComparePaired, NeedsPairsOfFiniteNumbers) {
    const std::vector<double> two = {1.0, 2.0}, one = {1.0}, none, bad = {1.0, std::nan("")};
    EXPECT_ERROR(compare_paired(two, one), ErrorKind::usage);
    EXPECT_ERROR(compare_paired(none, none), ErrorKind::usage);
    EXPECT_ERROR(compare_paired(two, bad), ErrorKind::usage);
    const std::vector<double> other = {5.0};
    EXPECT_EQ(compare_paired(one, other).verdict, Verdict::undecided);  // one pair has no error
    EXPECT_EQ(compare_paired(two, two).z, 0.0);
    EXPECT_EQ(compare_paired(two, two).verdict, Verdict::undecided);
}

TEST(ChunkMeans, AveragesChunksAndTheShortRest) {
    const std::vector<double> values = {1.0, 3.0, 5.0, 7.0, 10.0};
    EXPECT_EQ(chunk_means(values, 2), (std::vector<double>{2.0, 6.0, 10.0}));
    EXPECT_TRUE(chunk_means({}, 2).empty());
    EXPECT_ERROR(chunk_means(values, 0), ErrorKind::usage);
}

std::string joined(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& line : lines) {
        out += line + '\n';
    }
    return out;
}

TEST(ChooseBest, ExportsTheRivalWhenTheSearchLosesAndSaysSo) {
    const std::vector<MeasuredPlan> plans = {{"search", 0.30, {0.31, 0.29}, 1000},
                                             {"preset", 0.40, {0.41, 0.39}, 990},
                                             {"uniform", 0.25, {0.255, 0.245}, 999}};
    const Choice choice = choose_best(plans, 0, 1000);
    EXPECT_EQ(choice.best, 2u);
    EXPECT_FALSE(choice.searched_won);
    EXPECT_EQ(choice.comparison.n, 2u);
    EXPECT_NEAR(choice.comparison.mean_difference, 0.05, 1e-12);
    EXPECT_NE(joined(choice.log).find("exported: uniform, because search lost to it"),
              std::string::npos)
        << joined(choice.log);
}

TEST(ChooseBest, KeepsTheSearchWhenItWinsOrTies) {
    const std::vector<MeasuredPlan> plans = {
        {"preset", 0.3, {}, 900}, {"search", 0.3, {}, 1000}, {"uniform", 0.5, {}, 10}};
    const Choice choice = choose_best(plans, 1, 0);
    EXPECT_EQ(choice.best, 1u);
    EXPECT_TRUE(choice.searched_won);
    EXPECT_EQ(choice.comparison.n, 0u);  // no series to compare
    EXPECT_NE(joined(choice.log).find("exported: search"), std::string::npos);
}

TEST(ChooseBest, PassesOverPlansThatAreTooLargeOrBroken) {
    const std::vector<MeasuredPlan> plans = {{"search", 0.5, {0.5, 0.5}, 1000},
                                             {"large", 0.1, {0.1, 0.1}, 1001},
                                             {"broken", std::nan(""), {std::nan(""), 0.0}, 10}};
    const Choice choice = choose_best(plans, 0, 1000);
    EXPECT_EQ(choice.best, 0u);
    EXPECT_NE(joined(choice.log).find("1 bytes larger"), std::string::npos) << joined(choice.log);
    EXPECT_NE(joined(choice.log).find("not finite"), std::string::npos);
    EXPECT_ERROR(choose_best(plans, 3, 1000), ErrorKind::usage);
    EXPECT_ERROR(choose_best(plans, 0, 5), ErrorKind::usage);
}

}  // namespace
}  // namespace voodoo::search
