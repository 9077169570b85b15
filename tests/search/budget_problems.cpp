#include "budget_problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace voodoo::search::testing {
namespace {

BudgetItem make_item(Character character, size_t item, size_t n_items, uint64_t n_weights,
                     double sensitivity, Random& random) {
    BudgetItem out;
    out.tag = fmt::format("T{}", item);
    switch (character) {
        case Character::random:
            out.bytes = 1 + random.below(1000);
            out.value = static_cast<double>(random.below(1000)) - 500.0;
            break;
        case Character::realistic: {
            const double bits =
                1.5 + 14.5 * static_cast<double>(item) / static_cast<double>(n_items);
            out.bytes =
                static_cast<uint64_t>(bits * static_cast<double>(n_weights) / 8.0) / 32 * 32;
            out.value = sensitivity * std::exp2(-2.0 * bits) * (1.0 + 0.3 * random.normal());
            break;
        }
        case Character::correlated:
            out.bytes = 1000 + 37 * random.below(1000);
            out.value =
                100000.0 - static_cast<double>(out.bytes) + static_cast<double>(random.below(20));
            break;
        case Character::coarse:
            out.bytes = 10 * random.below(5);
            out.value = static_cast<double>(random.below(5));
            break;
    }
    return out;
}

}  // namespace

const char* to_string(Character character) {
    constexpr const char* kNames[] = {"random", "realistic", "correlated", "coarse"};
    return kNames[static_cast<size_t>(character)];
}

BudgetProblem make_problem(Character character, size_t n_groups, size_t n_items, Random& random) {
    constexpr uint64_t kShapes[] = {4096 * 4096,  4096 * 1024,  4096 * 1024, 4096 * 4096,
                                    4096 * 14336, 4096 * 14336, 4096 * 14336};
    BudgetProblem problem;
    problem.fixed_bytes = random.below(100);
    for (size_t g = 0; g < n_groups; ++g) {
        BudgetGroup& group = problem.groups.emplace_back();
        group.name = fmt::format("blk.{}.weight", g);
        const double sensitivity = std::exp(1.5 * random.normal());
        for (size_t i = 0; i < n_items; ++i) {
            group.items.push_back(make_item(character, i, n_items, kShapes[g % std::size(kShapes)],
                                            sensitivity, random));
        }
    }
    return problem;
}

uint64_t budget_at(const BudgetSolver& solver, double share) {
    const ByteRange range = solver.attainable();
    return range.min + static_cast<uint64_t>(share * static_cast<double>(range.max - range.min));
}

std::optional<double> brute_force(const BudgetProblem& problem, uint64_t budget_bytes) {
    const size_t n = problem.groups.size();
    std::vector<size_t> choice(n, 0);
    std::optional<double> best;
    while (true) {
        uint64_t bytes = problem.fixed_bytes;
        double value = 0.0;
        bool legal = true;
        for (size_t g = 0; g < n; ++g) {
            const BudgetGroup& group = problem.groups[g];
            const BudgetItem& item = group.items[choice[g]];
            bytes += item.bytes;
            value += item.value;
            legal = legal &&
                    (group.pin.empty() ? item.bytes >= group.floor_bytes : item.tag == group.pin);
        }
        for (const std::vector<size_t>& tie : problem.ties) {
            for (const size_t g : tie) {
                legal = legal && problem.groups[g].items[choice[g]].tag ==
                                     problem.groups[tie.front()].items[choice[tie.front()]].tag;
            }
        }
        if (legal && bytes <= budget_bytes && (!best || value < *best)) {
            best = value;
        }
        size_t g = 0;
        while (g < n && ++choice[g] == problem.groups[g].items.size()) {
            choice[g++] = 0;
        }
        if (g == n) {
            return best;
        }
    }
}

std::optional<double> table_optimum(const BudgetProblem& problem, uint64_t budget_bytes) {
    if (budget_bytes < problem.fixed_bytes) {
        return std::nullopt;
    }
    const uint64_t room = budget_bytes - problem.fixed_bytes;
    const double none = std::numeric_limits<double>::infinity();
    std::vector<double> best(room + 1, 0.0);
    for (const BudgetGroup& group : problem.groups) {
        std::vector<double> next(room + 1, none);
        for (const BudgetItem& item : group.items) {
            for (uint64_t b = item.bytes; b <= room; ++b) {
                next[b] = std::min(next[b], best[b - item.bytes] + item.value);
            }
        }
        best = std::move(next);
    }
    return best[room] < none ? std::optional(best[room]) : std::nullopt;
}

}  // namespace voodoo::search::testing
