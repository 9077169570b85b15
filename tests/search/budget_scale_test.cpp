// The knapsack at the size of real models: it must be exact there too, and fast.
#include <gtest/gtest.h>

#include <chrono>

#include "budget_problems.h"

namespace voodoo::search {
namespace {

using testing::Character;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(BudgetScale, IsExactOnAThousandTensorsWithTwentyFiveTypes) {
    Random random(11, "scale");
    for (const Character character : {Character::realistic, Character::random, Character::coarse}) {
        const BudgetSolver solver(testing::make_problem(character, 1000, 25, random));
        for (const double share : {0.02, 0.15, 0.3, 0.6}) {
            const uint64_t budget = testing::budget_at(solver, share);
            const auto start = std::chrono::steady_clock::now();
            const BudgetSolution solution = solver.solve(budget);
            const double seconds = seconds_since(start);
            EXPECT_EQ(solution.gap, 0.0) << testing::to_string(character) << " at " << share
                                         << ", states " << solution.n_states;
            EXPECT_TRUE(solver.verify(solution.choice, budget).ok());
            EXPECT_LE(solution.total_bytes, budget);
            // The bar is 2 s; some slack for sanitizers and busy machines.
            EXPECT_LT(seconds, 5.0) << testing::to_string(character) << " at " << share;
            RecordProperty(
                std::string(testing::to_string(character)) + std::to_string(share),
                std::to_string(seconds) + " s, states " + std::to_string(solution.n_states));
        }
    }
}

TEST(BudgetScale, ReportsAnHonestGapWhenTheStatesRunOut) {
    Random random(12, "scale");
    const BudgetSolver solver(testing::make_problem(Character::realistic, 300, 20, random));
    const uint64_t budget = testing::budget_at(solver, 0.2);
    const BudgetSolution exact = solver.solve(budget);
    ASSERT_EQ(exact.gap, 0.0);
    bool some_gap = false;
    for (const size_t max_states : {0, 10, 100, 1000}) {
        BudgetOptions options;
        options.max_states = max_states;
        const BudgetSolution cut = solver.solve(budget, options);
        EXPECT_LE(cut.total_bytes, budget);
        EXPECT_LE(cut.n_states, max_states);
        EXPECT_GE(cut.total_value, exact.total_value * (1.0 - 1e-12));
        EXPECT_LE(cut.total_value - cut.gap, exact.total_value * (1.0 + 1e-12)) << max_states;
        some_gap = some_gap || cut.gap > 0.0;
    }
    EXPECT_TRUE(some_gap);
}

TEST(BudgetScale, HardProblemsEndWithAProvenGap) {
    Random random(13, "scale");
    const BudgetSolver solver(testing::make_problem(Character::correlated, 1000, 25, random));
    for (const double share : {0.1, 0.5, 0.9}) {
        const BudgetSolution solution = solver.solve(testing::budget_at(solver, share));
        EXPECT_GE(solution.gap, 0.0);
        // One unit of value is the resolution of these problems' values.
        EXPECT_LE(solution.gap, 20.0) << share;
    }
}

TEST(BudgetScale, ALadderEqualsSingleSolutionsAndLosesNothingWithSize) {
    Random random(14, "scale");
    const BudgetProblem problem = testing::make_problem(Character::realistic, 210, 22, random);
    const BudgetSolver solver(problem);
    std::vector<uint64_t> budgets;
    for (int i = 0; i <= 20; ++i) {
        budgets.push_back(testing::budget_at(solver, 0.05 * i));
    }
    const std::vector<BudgetSolution> ladder = solve_ladder(problem, budgets);
    ASSERT_EQ(ladder.size(), budgets.size());
    for (size_t i = 0; i < ladder.size(); ++i) {
        EXPECT_EQ(ladder[i].choice, solver.solve(budgets[i]).choice);
        EXPECT_EQ(ladder[i].gap, 0.0);
        EXPECT_TRUE(i == 0 || ladder[i].total_value <= ladder[i - 1].total_value);
    }
}

}  // namespace
}  // namespace voodoo::search
