// The byte budget: choose one type per tensor so that the predicted loss is least and the whole
// file fits (a multiple-choice knapsack), exactly. Also: topping up a plan, and checking that a
// plan is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace voodoo::search {

struct BudgetItem {
    uint64_t bytes = 0;  ///< size in the file, padding included
    double value =
        0.0;  ///< predicted loss, lower is better; finite; only differences in a group count
    std::string tag;  ///< name of the type, unique in its group
};

struct BudgetGroup {
    std::string name;               ///< the tensor
    std::vector<BudgetItem> items;  ///< at least one
    std::string pin;                ///< non-empty: this tag is taken
    uint64_t floor_bytes = 0;       ///< items with fewer bytes are barred (a pin is not)
};

struct BudgetProblem {
    std::vector<BudgetGroup> groups;
    uint64_t fixed_bytes = 0;  ///< header, metadata, alignment, tensors that are not quantized
    /// Each tie lists indices of groups that must take the same tag (e.g. gate and up). Only tags
    /// that all of them have (and none bars) are possible; a pin of one holds for all.
    std::vector<std::vector<size_t>> ties;
};

struct ByteRange {
    uint64_t min = 0;
    uint64_t max = 0;
};

struct BudgetOptions {
    /// Limit of search states, for memory (about 8 bytes each) and time; when it is reached the
    /// best solution so far is returned with its proven gap. A count, not a time: results are
    /// reproducible.
    size_t max_states = 8'000'000;
};

struct BudgetSolution {
    std::vector<size_t> choice;  ///< per group, an index into its items
    uint64_t total_bytes = 0;    ///< fixed bytes included
    double total_value = 0.0;    ///< sum of the values in group order
    /// Proven: no choice within the budget has a total value below total_value - gap. 0 = optimal.
    double gap = 0.0;
    size_t n_states = 0;  ///< states visited

    bool optimal() const { return gap == 0.0; }
};

/// One improving change of a tensor (or of tensors tied together).
struct BudgetUpgrade {
    size_t group = 0;  ///< first group of the tie
    std::string tag;   ///< new type
    uint64_t total_bytes = 0;
    double total_value = 0.0;
};

struct FillReport {
    bool within_budget = false;
    uint64_t unused_bytes = 0;
    double unused_share = 0.0;             ///< of the budget
    std::optional<BudgetUpgrade> upgrade;  ///< a single legal change that fits and lowers the value
    /// Fits, and leaves less than 0.1 % unused or has no upgrade.
    bool ok() const { return within_budget && (unused_share < 1e-3 || !upgrade); }
};

/// Prepared once from a problem (a copy is kept), then solves any number of budgets. const methods
/// may run in several threads at once. Construction throws Error(usage) for an ill-formed problem
/// (empty group, duplicate tag, non-finite value, unknown pin, contradicting pins, ties without a
/// common tag, a floor that bars all, more than 2^52 bytes in all).
///
/// Exactness: values are rounded to fixed point with 60 bits for the sum of all groups' value
/// ranges, everything after that is integer arithmetic. Of choices with equal value the one found
/// first in a fixed order (fewer bytes, then group order, then tag) is taken: same problem, same
/// plan.
class BudgetSolver {
public:
    explicit BudgetSolver(BudgetProblem problem);
    ~BudgetSolver();
    BudgetSolver(BudgetSolver&&) noexcept;
    BudgetSolver& operator=(BudgetSolver&&) noexcept;

    const BudgetProblem& problem() const;
    /// Smallest and largest file that pins, floors and ties allow.
    ByteRange attainable() const;
    /// Throws Error(infeasible_budget) naming the attainable range if the budget is below its
    /// minimum.
    BudgetSolution solve(uint64_t budget_bytes, const BudgetOptions& options = {}) const;

    /// Applies the best single upgrade (most value per byte) that fits until there is none.
    /// Never raises the value. Throws Error(usage) if `choice` does not fit the problem,
    /// Error(infeasible_budget) if it is already over the budget.
    BudgetSolution fill(std::span<const size_t> choice, uint64_t budget_bytes) const;
    /// Throws Error(usage) if `choice` breaks a pin, floor or tie.
    FillReport verify(std::span<const size_t> choice, uint64_t budget_bytes) const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// BudgetSolver(problem).solve(budget_bytes, options).
BudgetSolution solve_budget(const BudgetProblem& problem, uint64_t budget_bytes,
                            const BudgetOptions& options = {});

/// One solution per budget from one preparation; throws before any work if one of them is
/// infeasible.
std::vector<BudgetSolution> solve_ladder(const BudgetProblem& problem,
                                         std::span<const uint64_t> budgets_bytes,
                                         const BudgetOptions& options = {});

}  // namespace voodoo::search
