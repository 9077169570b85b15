// Every case of every rule, with our CPU nodes and with plain ggml ops; completeness; the checker's
// own verdicts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "gradcheck/gradcheck.h"

namespace voodoo::gradcheck {
namespace {

class GradCheck : public testing::TestWithParam<Case> {};

TEST_P(GradCheck, MatchesNumericGradientAtAllScales) {
    const Case& c = GetParam();
    for (const double scale : c.scales) {
        const Reference reference = numeric_reference(c, scale);
        if (c.has_exact()) {
            EXPECT_LE(reference.forward_difference, c.exact_forward_tolerance)
                << "exact graph is another function";
        }
        for (const bool custom : {true, false}) {
            autodiff::TapeOptions options;
            options.cpu_custom_ops = custom;
            const Outcome outcome = check(c, scale, reference, options);
            EXPECT_TRUE(outcome.pass)
                << (custom ? "CPU nodes: " : "plain ggml ops: ") << outcome.text;
        }
    }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
    std::string name = info.param.rule + "_" + info.param.name;
    std::replace(name.begin(), name.end(), ':', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Rules, GradCheck, testing::ValuesIn(all_cases()), case_name);

TEST(GradCheckTable, HasACaseForEveryDifferentiableRule) {
    std::set<std::string> covered;
    for (const Case& c : all_cases()) {
        covered.insert(c.rule);
    }
    for (const autodiff::Rule& rule : autodiff::all_rules()) {
        if (!rule.stops_gradient()) {
            EXPECT_TRUE(covered.count(rule.name)) << rule.name;
        }
        covered.erase(rule.name);
    }
    EXPECT_TRUE(covered.empty()) << "cases of unknown rule " << *covered.begin();
}

TEST(GradCheckVerdict, FailsOnNan) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(compare({1.0, nan}, {1.0, 2.0}, 1.0, limits_of(Tolerance::smooth)).pass);
    EXPECT_FALSE(compare({1.0, 2.0}, {nan, 2.0}, 1.0, limits_of(Tolerance::smooth)).pass);
}

TEST(GradCheckVerdict, FailsOnVacuousReference) {
    const Verdict v = compare({0.0, 0.0}, {0.0, 1e-9}, 1.0, limits_of(Tolerance::smooth));
    EXPECT_TRUE(v.vacuous);
    EXPECT_FALSE(v.pass);
}

TEST(GradCheckVerdict, FailsOnOnePercentScaleAndOnOneWrongElement) {
    EXPECT_TRUE(compare({1.0, -2.0}, {1.0, -2.0}, 1.0, limits_of(Tolerance::smooth)).pass);
    EXPECT_FALSE(compare({1.01, -2.02}, {1.0, -2.0}, 1.0, limits_of(Tolerance::smooth)).pass);
    std::vector<double> numeric(10000, 1.0);
    std::vector<double> analytic = numeric;
    analytic[17] = 1.1;
    EXPECT_FALSE(compare(analytic, numeric, 1.0, limits_of(Tolerance::smooth)).pass);
}

}  // namespace
}  // namespace voodoo::gradcheck
