// Random budget problems of several characters, and slow solvers to check against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/random.h"
#include "search/budget.h"

namespace voodoo::search::testing {

enum class Character {
    random,      ///< bytes and values independent
    realistic,   ///< like a model: repeated layer shapes, types of 1.5 to 16 bpw, noisy convex
                 ///< losses
    correlated,  ///< value almost a linear function of bytes: the hard kind
    coarse,      ///< few distinct bytes and values: many ties
};

const char* to_string(Character character);

/// Values of `random`, `correlated` and `coarse` are integers, so that sums are exact.
BudgetProblem make_problem(Character character, size_t n_groups, size_t n_items, Random& random);

/// A budget at a share of the attainable range.
uint64_t budget_at(const BudgetSolver& solver, double share);

/// Least value over all choices that respect pins, floors and ties; nothing if none fits.
std::optional<double> brute_force(const BudgetProblem& problem, uint64_t budget_bytes);

/// The same by dynamic programming over bytes; for small sizes without ties, pins and floors.
std::optional<double> table_optimum(const BudgetProblem& problem, uint64_t budget_bytes);

}  // namespace voodoo::search::testing
