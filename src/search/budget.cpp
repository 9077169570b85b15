#include "search/budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "base/error.h"
#include "base/units.h"
#include "search/mckp.h"

namespace voodoo::search {
namespace {

using detail::Int128;
using detail::MckpClass;

constexpr uint64_t kMaxTotalBytes = uint64_t{1} << 52;
// Bits for the sum of all value ranges; leaves a spare bit below the solver's 2^61.
constexpr int kValueBits = 60;

[[noreturn]] void usage(const std::string& message) {
    throw Error(ErrorKind::usage, message, "budget");
}

/// A type that all groups of a tie can take together.
struct JointItem {
    uint64_t bytes = 0;
    double value = 0.0;
    int64_t fixed_value = 0;  // the value in fixed point, above the least of its joint group
    std::string tag;
    std::vector<size_t> positions;  // per member, the index into its items
};

/// Groups that take one tag; most often a single one.
struct JointGroup {
    std::vector<size_t> members;
    std::vector<JointItem> items;
    std::vector<uint32_t> reduced;  // items that no other beats in bytes and value, by rising bytes
};

void validate_group(const BudgetGroup& group) {
    if (group.items.empty()) {
        usage(fmt::format("tensor {} has no candidate type", group.name));
    }
    std::unordered_set<std::string_view> tags;
    for (const BudgetItem& item : group.items) {
        if (!std::isfinite(item.value)) {
            usage(fmt::format("tensor {}: the predicted loss of {} is not finite", group.name,
                              item.tag));
        }
        if (item.bytes > kMaxTotalBytes) {
            usage(fmt::format("tensor {}: {} bytes for {} is absurd", group.name, item.bytes,
                              item.tag));
        }
        if (!tags.insert(item.tag).second) {
            usage(fmt::format("tensor {}: type {} appears twice", group.name, item.tag));
        }
    }
    if (!group.pin.empty() && !tags.contains(group.pin)) {
        usage(fmt::format("tensor {} is pinned to {}, which is not among its types", group.name,
                          group.pin));
    }
}

bool allows(const BudgetGroup& group, const BudgetItem& item) {
    return group.pin.empty() ? item.bytes >= group.floor_bytes : item.tag == group.pin;
}

/// Connected components of the ties, in the order of their first groups.
std::vector<JointGroup> join_ties(const BudgetProblem& problem) {
    std::vector<size_t> root(problem.groups.size());
    std::iota(root.begin(), root.end(), size_t{0});
    const auto find = [&](size_t g) {
        while (root[g] != g) {
            g = root[g];
        }
        return g;
    };
    for (const std::vector<size_t>& tie : problem.ties) {
        for (const size_t g : tie) {
            if (g >= problem.groups.size()) {
                usage(fmt::format("a tie names group {} of {}", g, problem.groups.size()));
            }
            const size_t a = find(tie.front()), b = find(g);
            root[std::max(a, b)] = std::min(a, b);
        }
    }
    std::vector<JointGroup> joint;
    std::vector<size_t> index(problem.groups.size());
    for (size_t g = 0; g < problem.groups.size(); ++g) {
        const size_t r = find(g);
        if (r == g) {
            index[g] = joint.size();
            joint.emplace_back();
        }
        joint[index[r]].members.push_back(g);
    }
    return joint;
}

void fill_joint_items(const BudgetProblem& problem, JointGroup& joint) {
    const BudgetGroup& first = problem.groups[joint.members.front()];
    for (const BudgetItem& candidate : first.items) {
        JointItem item{0, 0.0, 0, candidate.tag, {}};
        for (const size_t g : joint.members) {
            const BudgetGroup& group = problem.groups[g];
            const auto found =
                std::find_if(group.items.begin(), group.items.end(),
                             [&](const BudgetItem& other) { return other.tag == candidate.tag; });
            if (found == group.items.end() || !allows(group, *found)) {
                break;
            }
            item.bytes += found->bytes;
            item.value += found->value;
            item.positions.push_back(static_cast<size_t>(found - group.items.begin()));
        }
        if (item.positions.size() == joint.members.size()) {
            joint.items.push_back(std::move(item));
        }
    }
    if (joint.items.empty()) {
        usage(joint.members.size() == 1
                  ? fmt::format("tensor {}: its floor of {} bytes bars every type", first.name,
                                first.floor_bytes)
                  : fmt::format("tensor {} and {} tied to it have no type in common that pins and "
                                "floors allow",
                                first.name, joint.members.size() - 1));
    }
}

/// Fixed point: value = fixed_value * 2^-shift above the group's least. Returns the shift.
int round_values(std::vector<JointGroup>& groups) {
    const auto by_value = [](const JointItem& a, const JointItem& b) { return a.value < b.value; };
    double range = 0.0;
    for (const JointGroup& joint : groups) {
        const auto [least, most] =
            std::minmax_element(joint.items.begin(), joint.items.end(), by_value);
        range += most->value - least->value;
    }
    if (!std::isfinite(range)) {
        usage("the predicted losses overflow when they are added");
    }
    int exponent = 0;
    std::frexp(range, &exponent);  // range < 2^exponent
    const int shift = kValueBits - exponent;
    for (JointGroup& joint : groups) {
        const double least =
            std::min_element(joint.items.begin(), joint.items.end(), by_value)->value;
        for (JointItem& item : joint.items) {
            item.fixed_value = std::llround(std::ldexp(item.value - least, shift));
        }
    }
    return shift;
}

void reduce(JointGroup& joint) {
    std::vector<uint32_t> order(joint.items.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        const JointItem &x = joint.items[a], &y = joint.items[b];
        if (x.bytes != y.bytes) {
            return x.bytes < y.bytes;
        }
        return x.fixed_value != y.fixed_value ? x.fixed_value < y.fixed_value : x.tag < y.tag;
    });
    for (const uint32_t i : order) {
        if (joint.reduced.empty() ||
            joint.items[i].fixed_value < joint.items[joint.reduced.back()].fixed_value) {
            joint.reduced.push_back(i);
        }
    }
}

}  // namespace

struct BudgetSolver::Impl {
    BudgetProblem problem;
    std::vector<JointGroup> groups;
    int shift = 0;
    ByteRange range;
    std::unique_ptr<detail::MckpSolver> solver;

    /// A change of one joint group.
    struct Move {
        size_t group = 0;
        size_t item = 0;
        int64_t gain = 0;        // 0: there is none
        int64_t more_bytes = 0;  // may be negative
    };

    void check_feasible(uint64_t budget_bytes) const;
    std::vector<size_t> joint_choice(std::span<const size_t> choice) const;
    std::vector<size_t> expand(std::span<const size_t> joint) const;
    uint64_t total_bytes(std::span<const size_t> joint) const;
    int64_t fixed_value(std::span<const size_t> joint) const;
    Move find_upgrade(std::span<const size_t> joint, uint64_t budget_bytes) const;
    BudgetSolution describe(std::span<const size_t> joint, int64_t lower_bound) const;
};

void BudgetSolver::Impl::check_feasible(uint64_t budget_bytes) const {
    if (budget_bytes < range.min) {
        throw Error(
            ErrorKind::infeasible_budget,
            fmt::format("{} bytes ({}) can't be reached: the file takes {} to {} bytes ({} to {})",
                        budget_bytes, format_size(budget_bytes), range.min, range.max,
                        format_size(range.min), format_size(range.max)),
            "budget", "ask for a larger size or allow smaller types");
    }
}

/// Per joint group, the index of the item that `choice` takes; throws Error(usage) if it takes
/// none.
std::vector<size_t> BudgetSolver::Impl::joint_choice(std::span<const size_t> choice) const {
    if (choice.size() != problem.groups.size()) {
        usage(fmt::format("a choice for {} tensors instead of {}", choice.size(),
                          problem.groups.size()));
    }
    std::vector<size_t> out;
    for (const JointGroup& joint : groups) {
        const auto matches = [&](const JointItem& item) {
            for (size_t m = 0; m < joint.members.size(); ++m) {
                if (choice[joint.members[m]] != item.positions[m]) {
                    return false;
                }
            }
            return true;
        };
        const auto found = std::find_if(joint.items.begin(), joint.items.end(), matches);
        if (found == joint.items.end()) {
            usage(fmt::format("the choice for tensor {} breaks its pin, floor or tie",
                              problem.groups[joint.members.front()].name));
        }
        out.push_back(static_cast<size_t>(found - joint.items.begin()));
    }
    return out;
}

std::vector<size_t> BudgetSolver::Impl::expand(std::span<const size_t> joint) const {
    std::vector<size_t> choice(problem.groups.size());
    for (size_t j = 0; j < groups.size(); ++j) {
        for (size_t m = 0; m < groups[j].members.size(); ++m) {
            choice[groups[j].members[m]] = groups[j].items[joint[j]].positions[m];
        }
    }
    return choice;
}

uint64_t BudgetSolver::Impl::total_bytes(std::span<const size_t> joint) const {
    uint64_t total = problem.fixed_bytes;
    for (size_t j = 0; j < groups.size(); ++j) {
        total += groups[j].items[joint[j]].bytes;
    }
    return total;
}

int64_t BudgetSolver::Impl::fixed_value(std::span<const size_t> joint) const {
    int64_t total = 0;
    for (size_t j = 0; j < groups.size(); ++j) {
        total += groups[j].items[joint[j]].fixed_value;
    }
    return total;
}

/// The change of one joint group that fits, lowers the value, and gains most per byte.
BudgetSolver::Impl::Move BudgetSolver::Impl::find_upgrade(std::span<const size_t> joint,
                                                          uint64_t budget_bytes) const {
    const auto room = static_cast<int64_t>(budget_bytes) - static_cast<int64_t>(total_bytes(joint));
    const auto better = [](const Move& a, const Move& b) {
        const bool a_free = a.more_bytes <= 0, b_free = b.more_bytes <= 0;
        if (a_free || b_free || b.gain == 0) {
            return b.gain == 0 || (a_free != b_free ? a_free : a.gain > b.gain);
        }
        return Int128{a.gain} * b.more_bytes > Int128{b.gain} * a.more_bytes;
    };
    Move best;
    for (size_t j = 0; j < groups.size(); ++j) {
        const JointItem& now = groups[j].items[joint[j]];
        for (const uint32_t i : groups[j].reduced) {
            const JointItem& item = groups[j].items[i];
            const Move move{j, i, now.fixed_value - item.fixed_value,
                            static_cast<int64_t>(item.bytes) - static_cast<int64_t>(now.bytes)};
            if (move.gain > 0 && move.more_bytes <= room && better(move, best)) {
                best = move;
            }
        }
    }
    return best;
}

BudgetSolution BudgetSolver::Impl::describe(std::span<const size_t> joint,
                                            int64_t lower_bound) const {
    BudgetSolution out;
    out.choice = expand(joint);
    out.total_bytes = total_bytes(joint);
    for (size_t g = 0; g < problem.groups.size(); ++g) {
        out.total_value += problem.groups[g].items[out.choice[g]].value;
    }
    out.gap = std::ldexp(static_cast<double>(fixed_value(joint) - lower_bound), -shift);
    return out;
}

BudgetSolver::BudgetSolver(BudgetProblem problem) : impl_(std::make_unique<Impl>()) {
    for (const BudgetGroup& group : problem.groups) {
        validate_group(group);
    }
    impl_->problem = std::move(problem);
    impl_->groups = join_ties(impl_->problem);
    impl_->range = {impl_->problem.fixed_bytes, impl_->problem.fixed_bytes};
    for (JointGroup& joint : impl_->groups) {
        fill_joint_items(impl_->problem, joint);
        const auto [least, most] = std::minmax_element(
            joint.items.begin(), joint.items.end(),
            [](const JointItem& a, const JointItem& b) { return a.bytes < b.bytes; });
        impl_->range.min += least->bytes;
        impl_->range.max += most->bytes;
        if (impl_->range.max > kMaxTotalBytes || impl_->problem.fixed_bytes > kMaxTotalBytes) {
            usage("the file could take more than 2^52 bytes");
        }
    }
    impl_->shift = round_values(impl_->groups);
    std::vector<MckpClass> classes;
    for (JointGroup& joint : impl_->groups) {
        reduce(joint);
        MckpClass& items = classes.emplace_back();
        for (const uint32_t i : joint.reduced) {
            items.push_back(
                {static_cast<int64_t>(joint.items[i].bytes), joint.items[i].fixed_value});
        }
    }
    impl_->solver = std::make_unique<detail::MckpSolver>(std::move(classes));
}

BudgetSolver::~BudgetSolver() = default;
BudgetSolver::BudgetSolver(BudgetSolver&&) noexcept = default;
BudgetSolver& BudgetSolver::operator=(BudgetSolver&&) noexcept = default;

const BudgetProblem& BudgetSolver::problem() const {
    return impl_->problem;
}

ByteRange BudgetSolver::attainable() const {
    return impl_->range;
}

BudgetSolution BudgetSolver::solve(uint64_t budget_bytes, const BudgetOptions& options) const {
    impl_->check_feasible(budget_bytes);
    // Anything above the largest file is the same budget; this also keeps it within the solver's
    // range.
    const uint64_t capped = std::min(budget_bytes, impl_->range.max) - impl_->problem.fixed_bytes;
    const detail::MckpResult result =
        impl_->solver->solve(static_cast<int64_t>(capped), options.max_states);
    std::vector<size_t> joint;
    for (size_t j = 0; j < impl_->groups.size(); ++j) {
        joint.push_back(impl_->groups[j].reduced[result.choice[j]]);
    }
    BudgetSolution out = impl_->describe(joint, result.lower_bound);
    VOODOO_CHECK(out.total_bytes <= budget_bytes, "{} bytes exceed {}", out.total_bytes,
                 budget_bytes);
    out.n_states = result.n_states;
    return out;
}

BudgetSolution BudgetSolver::fill(std::span<const size_t> choice, uint64_t budget_bytes) const {
    impl_->check_feasible(budget_bytes);
    std::vector<size_t> joint = impl_->joint_choice(choice);
    const uint64_t budget = std::min(budget_bytes, impl_->range.max);
    if (const uint64_t start = impl_->total_bytes(joint); start > budget) {
        throw Error(ErrorKind::infeasible_budget,
                    fmt::format("the plan to be filled takes {} bytes, the budget is {}", start,
                                budget_bytes),
                    "budget");
    }
    for (auto move = impl_->find_upgrade(joint, budget); move.gain > 0;
         move = impl_->find_upgrade(joint, budget)) {
        joint[move.group] = move.item;
    }
    return impl_->describe(joint, impl_->solver->relaxed_bound(
                                      static_cast<int64_t>(budget - impl_->problem.fixed_bytes)));
}

FillReport BudgetSolver::verify(std::span<const size_t> choice, uint64_t budget_bytes) const {
    std::vector<size_t> joint = impl_->joint_choice(choice);
    FillReport report;
    const uint64_t total = impl_->total_bytes(joint);
    report.within_budget = total <= budget_bytes;
    if (!report.within_budget) {
        return report;
    }
    report.unused_bytes = budget_bytes - total;
    report.unused_share = budget_bytes == 0 ? 0.0
                                            : static_cast<double>(report.unused_bytes) /
                                                  static_cast<double>(budget_bytes);
    const auto move = impl_->find_upgrade(joint, std::min(budget_bytes, impl_->range.max));
    if (move.gain > 0) {
        joint[move.group] = move.item;
        const BudgetSolution after = impl_->describe(joint, 0);
        report.upgrade = BudgetUpgrade{impl_->groups[move.group].members.front(),
                                       impl_->groups[move.group].items[move.item].tag,
                                       after.total_bytes, after.total_value};
    }
    return report;
}

BudgetSolution solve_budget(const BudgetProblem& problem, uint64_t budget_bytes,
                            const BudgetOptions& options) {
    return BudgetSolver(problem).solve(budget_bytes, options);
}

std::vector<BudgetSolution> solve_ladder(const BudgetProblem& problem,
                                         std::span<const uint64_t> budgets_bytes,
                                         const BudgetOptions& options) {
    const BudgetSolver solver(problem);
    for (const uint64_t budget : budgets_bytes) {
        if (budget < solver.attainable().min) {
            solver.solve(budget, options);  // throws, with the range
        }
    }
    std::vector<BudgetSolution> out;
    for (const uint64_t budget : budgets_bytes) {
        out.push_back(solver.solve(budget, options));
    }
    return out;
}

}  // namespace voodoo::search
