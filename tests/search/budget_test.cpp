// The knapsack against brute force, and the rules around it: pins, floors, ties, errors, filling.
#include "search/budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "budget_problems.h"
#include "expect_error.h"

namespace voodoo::search {
namespace {

using testing::Character;

constexpr Character kCharacters[] = {Character::random, Character::realistic, Character::correlated,
                                     Character::coarse};

BudgetProblem two_tensors() {
    BudgetProblem problem;
    problem.groups = {{"a", {{100, 3.0, "Q2"}, {200, 1.0, "Q4"}, {400, 0.0, "Q8"}}, "", 0},
                      {"b", {{50, 5.0, "Q2"}, {100, 2.0, "Q4"}, {200, 0.0, "Q8"}}, "", 0}};
    problem.fixed_bytes = 10;
    return problem;
}

double tolerance(double value) {
    return 1e-12 * std::max(1.0, std::abs(value));
}

TEST(BudgetSolver, MatchesBruteForceOnRandomProblems) {
    Random random(1, "budget");
    for (const Character character : kCharacters) {
        for (int round = 0; round < 150; ++round) {
            const size_t n_groups = 1 + random.below(6), n_items = 1 + random.below(5);
            const BudgetProblem problem =
                testing::make_problem(character, n_groups, n_items, random);
            const BudgetSolver solver(problem);
            const uint64_t budget = testing::budget_at(solver, random.uniform());
            const BudgetSolution solution = solver.solve(budget);
            const double expected = testing::brute_force(problem, budget).value();
            ASSERT_NEAR(solution.total_value, expected, tolerance(expected))
                << testing::to_string(character) << " round " << round;
            ASSERT_EQ(solution.gap, 0.0);
            ASSERT_LE(solution.total_bytes, budget);
        }
    }
}

TEST(BudgetSolver, MatchesBruteForceWithPinsFloorsAndTies) {
    Random random(2, "budget");
    int solved = 0;
    for (int round = 0; round < 400; ++round) {
        const Character character = kCharacters[random.below(4)];
        BudgetProblem problem = testing::make_problem(character, 6, 4, random);
        problem.ties = {{0, 1}, {1, 2}};
        problem.groups[random.below(6)].pin = fmt::format("T{}", random.below(4));
        BudgetGroup& floored = problem.groups[random.below(6)];
        floored.floor_bytes = floored.items[random.below(4)].bytes;
        try {
            const BudgetSolver solver(problem);
            const uint64_t budget = testing::budget_at(solver, random.uniform());
            const double expected = testing::brute_force(problem, budget).value();
            ASSERT_NEAR(solver.solve(budget).total_value, expected, tolerance(expected))
                << "round " << round;
            ++solved;
        } catch (const Error& error) {
            // Tie and floor may leave no common type; then brute force must find nothing either.
            ASSERT_EQ(error.kind(), ErrorKind::usage) << error.what();
            ASSERT_FALSE(testing::brute_force(problem, std::numeric_limits<uint64_t>::max()))
                << "round " << round;
        }
    }
    EXPECT_GT(solved, 200);
}

TEST(BudgetSolver, MatchesATableOverBytes) {
    Random random(3, "budget");
    for (const Character character :
         {Character::random, Character::coarse, Character::correlated}) {
        for (int round = 0; round < 6; ++round) {
            const size_t n_groups = character == Character::correlated ? 6 : 40;
            const BudgetProblem problem = testing::make_problem(character, n_groups, 8, random);
            const BudgetSolver solver(problem);
            const uint64_t budget = testing::budget_at(solver, 0.1 + 0.8 * random.uniform());
            const BudgetSolution solution = solver.solve(budget);
            EXPECT_EQ(solution.total_value, testing::table_optimum(problem, budget).value())
                << testing::to_string(character) << " round " << round;
            EXPECT_TRUE(solution.optimal());
        }
    }
}

TEST(BudgetSolver, AttainableRangeIsTight) {
    const BudgetSolver solver(two_tensors());
    EXPECT_EQ(solver.attainable().min, 160u);
    EXPECT_EQ(solver.attainable().max, 610u);
    EXPECT_EQ(solver.solve(160).total_bytes, 160u);
    EXPECT_EQ(solver.solve(610).total_bytes, 610u);
    EXPECT_EQ(solver.solve(1'000'000'000'000'000'000).total_bytes, 610u);
}

TEST(BudgetSolver, RefusesAnInfeasibleBudgetAndNamesTheRange) {
    try {
        solve_budget(two_tensors(), 159);
        FAIL() << "159 bytes are below the minimum of 160";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::infeasible_budget);
        EXPECT_NE(std::string(error.what()).find("160 to 610"), std::string::npos) << error.what();
    }
    const std::vector<uint64_t> budgets = {500, 3};
    EXPECT_ERROR(solve_ladder(two_tensors(), budgets), ErrorKind::infeasible_budget);
}

TEST(BudgetSolver, HonoursAPinEvenBelowTheFloor) {
    BudgetProblem problem = two_tensors();
    problem.groups[0].pin = "Q2";
    problem.groups[0].floor_bytes = 200;
    const BudgetSolution solution = solve_budget(problem, 10'000);
    EXPECT_EQ(solution.choice, (std::vector<size_t>{0, 2}));
}

TEST(BudgetSolver, APinHoldsForAllTiedGroups) {
    BudgetProblem problem = two_tensors();
    problem.groups[1].pin = "Q4";
    problem.ties = {{0, 1}};
    EXPECT_EQ(solve_budget(problem, 10'000).choice, (std::vector<size_t>{1, 1}));
}

TEST(BudgetSolver, RefusesIllFormedProblems) {
    const auto refuse = [](auto&& change) {
        BudgetProblem problem = two_tensors();
        change(problem);
        EXPECT_ERROR(BudgetSolver{problem}, ErrorKind::usage);
    };
    refuse([](BudgetProblem& p) { p.groups[0].items.clear(); });
    refuse([](BudgetProblem& p) { p.groups[0].items[1].tag = "Q2"; });
    refuse([](BudgetProblem& p) { p.groups[0].items[1].value = std::nan(""); });
    refuse([](BudgetProblem& p) {
        p.groups[0].items[0].value = 1.7e308, p.groups[0].items[1].value = -1.7e308;
    });
    refuse([](BudgetProblem& p) { p.groups[0].items[1].bytes = uint64_t{1} << 60; });
    refuse([](BudgetProblem& p) { p.fixed_bytes = ~uint64_t{0}; });
    refuse([](BudgetProblem& p) { p.groups[0].pin = "Q5"; });
    refuse([](BudgetProblem& p) { p.groups[0].floor_bytes = 401; });
    refuse([](BudgetProblem& p) { p.ties = {{0, 2}}; });
    refuse([](BudgetProblem& p) {
        p.ties = {{0, 1}};
        p.groups[0].pin = "Q2";
        p.groups[1].pin = "Q4";
    });
}

TEST(BudgetSolver, GivesTheSamePlanWhateverTheOrderOfItems) {
    Random random(4, "budget");
    for (int round = 0; round < 50; ++round) {
        const BudgetProblem problem = testing::make_problem(Character::coarse, 12, 5, random);
        BudgetProblem shuffled = problem;
        for (BudgetGroup& group : shuffled.groups) {
            for (size_t i = group.items.size(); i > 1; --i) {
                std::swap(group.items[i - 1], group.items[random.below(i)]);
            }
        }
        const BudgetSolver solver(problem);
        const uint64_t budget = testing::budget_at(solver, random.uniform());
        const BudgetSolution a = solver.solve(budget), b = solve_budget(shuffled, budget);
        for (size_t g = 0; g < problem.groups.size(); ++g) {
            ASSERT_EQ(problem.groups[g].items[a.choice[g]].tag,
                      shuffled.groups[g].items[b.choice[g]].tag);
        }
    }
}

TEST(BudgetSolver, GivesTheEarlierOfEqualTensorsTheLargerType) {
    BudgetProblem problem;
    for (int g = 0; g < 5; ++g) {
        problem.groups.push_back({"t", {{10, 1.0, "small"}, {20, 0.0, "large"}}, "", 0});
    }
    EXPECT_EQ(solve_budget(problem, 70).choice, (std::vector<size_t>{1, 1, 0, 0, 0}));
}

TEST(BudgetSolver, PrefersFewerBytesAndTheFirstTagAmongEqualValues) {
    BudgetProblem problem;
    problem.groups = {{"t", {{30, 0.0, "c"}, {20, 0.0, "b"}, {20, 0.0, "a"}}, "", 0}};
    EXPECT_EQ(solve_budget(problem, 100).choice, (std::vector<size_t>{2}));
}

TEST(BudgetSolver, HandlesConstantAndTinyAndHugeValues) {
    BudgetProblem problem = two_tensors();
    for (const double scale : {0.0, 1e-300, 1e-30, 1e30, 1e300}) {
        BudgetProblem scaled = problem;
        for (BudgetGroup& group : scaled.groups) {
            for (BudgetItem& item : group.items) {
                item.value *= scale;
            }
        }
        const BudgetSolution solution = solve_budget(scaled, 320);
        EXPECT_EQ(solution.gap, 0.0);
        EXPECT_EQ(solution.total_value, testing::brute_force(scaled, 320).value()) << scale;
    }
}

TEST(BudgetSolver, SolvesAnEmptyProblem) {
    BudgetProblem problem;
    problem.fixed_bytes = 7;
    EXPECT_EQ(solve_budget(problem, 7).total_bytes, 7u);
    EXPECT_ERROR(solve_budget(problem, 6), ErrorKind::infeasible_budget);
}

TEST(BudgetFill, LeavesNoUpgradeAndNeverRaisesTheValue) {
    Random random(5, "budget");
    int improved = 0;
    for (int round = 0; round < 200; ++round) {
        BudgetProblem problem = testing::make_problem(kCharacters[random.below(4)], 8, 5, random);
        problem.ties = {{2, 5}};
        const BudgetSolver solver(problem);
        const uint64_t budget = testing::budget_at(solver, 0.3 + 0.7 * random.uniform());
        const BudgetSolution start = solver.solve(testing::budget_at(solver, 0.0));
        const FillReport before = solver.verify(start.choice, budget);
        const BudgetSolution filled = solver.fill(start.choice, budget);
        ASSERT_LE(filled.total_value, start.total_value + 1e-9);
        ASSERT_LE(filled.total_bytes, budget);
        const FillReport report = solver.verify(filled.choice, budget);
        ASSERT_TRUE(report.ok());
        ASSERT_FALSE(report.upgrade.has_value());
        ASSERT_EQ(before.upgrade.has_value(), filled.total_value < start.total_value - 1e-15);
        improved += before.upgrade.has_value();
        // The gap that it states must hold.
        const double best = solver.solve(budget).total_value;
        ASSERT_LE(filled.total_value - filled.gap, best + tolerance(best)) << "round " << round;
    }
    EXPECT_GT(improved, 100);
}

TEST(BudgetFill, VerifySeesAnUnfilledPlanAndAnOverfullOne) {
    const BudgetSolver solver(two_tensors());
    const std::vector<size_t> smallest = {0, 0}, largest = {2, 2};
    const FillReport unfilled = solver.verify(smallest, 260);
    EXPECT_FALSE(unfilled.ok());
    EXPECT_EQ(unfilled.unused_bytes, 100u);
    ASSERT_TRUE(unfilled.upgrade.has_value());
    EXPECT_EQ(unfilled.upgrade->group, 1u);  // 3 per 50 bytes beats 2 per 100
    EXPECT_EQ(unfilled.upgrade->tag, "Q4");
    EXPECT_EQ(unfilled.upgrade->total_bytes, 210u);
    EXPECT_EQ(unfilled.upgrade->total_value, 5.0);
    EXPECT_FALSE(solver.verify(largest, 609).ok());
    EXPECT_TRUE(solver.verify(largest, 610).ok());
    EXPECT_TRUE(solver.verify(largest, 1'000'000).ok());  // nothing larger exists
}

TEST(BudgetFill, RefusesChoicesThatBreakTheRules) {
    BudgetProblem problem = two_tensors();
    problem.ties = {{0, 1}};
    const BudgetSolver solver(problem);
    const std::vector<size_t> untied = {0, 1}, short_one = {0}, outside = {9, 9}, large = {2, 2};
    EXPECT_ERROR(solver.verify(untied, 1000), ErrorKind::usage);
    EXPECT_ERROR(solver.fill(short_one, 1000), ErrorKind::usage);
    EXPECT_ERROR(solver.fill(outside, 1000), ErrorKind::usage);
    EXPECT_ERROR(solver.fill(large, 300), ErrorKind::infeasible_budget);
}

}  // namespace
}  // namespace voodoo::search
