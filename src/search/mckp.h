// The multiple-choice knapsack on integers: the solver under budget.h. Internal to this layer.
//
// Method: linear relaxation by convex hulls; then dynamic programming over classes in order of how
// close they are to the relaxation's threshold, on lists of (weight, value) states without
// dominated ones, pruned by the relaxation's bound (the "expanding core" of Pisinger, A minimal
// algorithm for the multiple-choice knapsack problem, 1995). All comparisons are exact in 128-bit
// integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace voodoo::search::detail {

__extension__ typedef __int128 Int128;

struct MckpItem {
    int64_t weight = 0;  ///< >= 0; the sum of the classes' largest is at most 2^52
    int64_t value = 0;   ///< >= 0, lower is better; the sum of the classes' largest is at most 2^61

    bool operator==(const MckpItem&) const = default;
};

/// Items by strictly rising weight and strictly falling value.
using MckpClass = std::vector<MckpItem>;

struct MckpResult {
    std::vector<uint32_t> choice;  ///< item of each class
    int64_t value = 0;
    int64_t lower_bound = 0;  ///< no choice has a smaller value; == value if proven optimal
    size_t n_states = 0;
};

class MckpSolver {
public:
    explicit MckpSolver(std::vector<MckpClass> classes);

    /// `capacity` is at least the sum of the lightest items.
    MckpResult solve(int64_t capacity, size_t max_states) const;
    /// Bound of the linear relaxation, rounded up to an integer.
    int64_t relaxed_bound(int64_t capacity) const;

private:
    /// A move along a class's hull; value falls by `gain` for `weight` more.
    struct Step {
        int64_t gain = 0;
        int64_t weight = 0;
        uint32_t class_index = 0;
        uint32_t to = 0;  // position on the hull
    };
    /// The relaxation's integral part, and the step that no longer fits.
    struct Relaxation {
        std::vector<uint32_t> level;  // per class, position on the hull
        std::vector<uint32_t> choice;
        int64_t weight = 0;
        int64_t value = 0;
        const Step* next = nullptr;  // nullptr: everything fits, the choice is optimal
    };
    class Search;

    Relaxation relax(int64_t capacity) const;
    void build_hulls();
    void find_twins();
    void canonicalize(std::vector<uint32_t>& choice) const;

    std::vector<MckpClass> classes_;
    std::vector<std::vector<uint32_t>> hulls_;
    std::vector<Step> steps_;                   // by falling gain per weight
    std::vector<std::vector<uint32_t>> twins_;  // classes with equal items, for canonical solutions
};

}  // namespace voodoo::search::detail
