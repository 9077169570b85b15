#include "search/mckp.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/error.h"

namespace voodoo::search::detail {
namespace {

/// gain per weight of a hull step as an exact fraction; weight 0 stands for infinity.
struct Slope {
    int64_t gain = 0;
    int64_t weight = 1;
};

bool steeper(const Slope& a, const Slope& b) {
    return Int128{a.gain} * b.weight > Int128{b.gain} * a.weight;
}

}  // namespace

MckpSolver::MckpSolver(std::vector<MckpClass> classes) : classes_(std::move(classes)) {
    build_hulls();
    find_twins();
}

void MckpSolver::build_hulls() {
    hulls_.resize(classes_.size());
    for (size_t c = 0; c < classes_.size(); ++c) {
        const MckpClass& items = classes_[c];
        VOODOO_CHECK(!items.empty(), "class {} has no items", c);
        std::vector<uint32_t>& hull = hulls_[c];
        const auto slope = [&](uint32_t from, uint32_t to) {
            return Slope{items[from].value - items[to].value,
                         items[to].weight - items[from].weight};
        };
        for (uint32_t i = 0; i < items.size(); ++i) {
            VOODOO_CHECK(i == 0 || (items[i].weight > items[i - 1].weight &&
                                    items[i].value < items[i - 1].value),
                         "class {} is not reduced at item {}", c, i);
            // Strictly falling slopes: a point on or above the line of its neighbours is dropped.
            while (hull.size() >= 2 &&
                   !steeper(slope(hull[hull.size() - 2], hull.back()), slope(hull.back(), i))) {
                hull.pop_back();
            }
            hull.push_back(i);
        }
        for (uint32_t k = 1; k < hull.size(); ++k) {
            const Slope s = slope(hull[k - 1], hull[k]);
            steps_.push_back({s.gain, s.weight, static_cast<uint32_t>(c), k});
        }
    }
    std::stable_sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) {
        return steeper({a.gain, a.weight}, {b.gain, b.weight});
    });
}

void MckpSolver::find_twins() {
    const auto less = [this](uint32_t a, uint32_t b) {
        const auto order = [](const MckpItem& x, const MckpItem& y) {
            return x.weight != y.weight ? x.weight < y.weight : x.value < y.value;
        };
        return std::lexicographical_compare(classes_[a].begin(), classes_[a].end(),
                                            classes_[b].begin(), classes_[b].end(), order);
    };
    std::map<uint32_t, std::vector<uint32_t>, decltype(less)> by_items(less);
    for (uint32_t c = 0; c < classes_.size(); ++c) {
        by_items[c].push_back(c);
    }
    for (auto& [first, members] : by_items) {
        if (members.size() > 1 && classes_[first].size() > 1) {
            twins_.push_back(std::move(members));
        }
    }
}

/// Classes with equal items are interchangeable: the earlier ones get the larger items.
void MckpSolver::canonicalize(std::vector<uint32_t>& choice) const {
    for (const std::vector<uint32_t>& members : twins_) {
        std::vector<uint32_t> taken;
        taken.reserve(members.size());
        for (const uint32_t c : members) {
            taken.push_back(choice[c]);
        }
        std::sort(taken.begin(), taken.end(), std::greater<>());
        for (size_t i = 0; i < members.size(); ++i) {
            choice[members[i]] = taken[i];
        }
    }
}

MckpSolver::Relaxation MckpSolver::relax(int64_t capacity) const {
    Relaxation out;
    out.level.assign(classes_.size(), 0);
    out.choice.assign(classes_.size(), 0);
    for (const MckpClass& items : classes_) {
        out.weight += items.front().weight;
        out.value += items.front().value;
    }
    VOODOO_CHECK(out.weight <= capacity, "capacity {} is below the least weight {}", capacity,
                 out.weight);
    for (const Step& step : steps_) {
        if (out.weight + step.weight > capacity) {
            out.next = &step;
            break;
        }
        out.weight += step.weight;
        out.value -= step.gain;
        out.level[step.class_index] = step.to;
        out.choice[step.class_index] = hulls_[step.class_index][step.to];
    }
    return out;
}

int64_t MckpSolver::relaxed_bound(int64_t capacity) const {
    const Relaxation relaxed = relax(capacity);
    if (relaxed.next == nullptr) {
        return relaxed.value;
    }
    const Int128 gain =
        Int128{capacity - relaxed.weight} * relaxed.next->gain / relaxed.next->weight;
    return relaxed.value - static_cast<int64_t>(gain);
}

/// The search for one capacity.
class MckpSolver::Search {
public:
    Search(const MckpSolver& solver, int64_t capacity, const Relaxation& relaxed)
        : solver_(solver), capacity_(capacity), relaxed_(relaxed) {}

    MckpResult run(size_t max_states);

private:
    struct State {
        int64_t weight = 0;
        int64_t value = 0;
        uint32_t parent = 0;  // state of the previous layer
        uint32_t item = 0;    // of this layer's class
    };
    /// What is kept of a layer, to read a solution back.
    struct Back {
        uint32_t parent = 0;
        uint32_t item = 0;
    };

    void start_from_heuristics();
    void consider(std::vector<uint32_t> choice);
    void order_core();
    bool is_hopeless(int64_t weight, int64_t value, size_t layer) const;
    int64_t bound(const State& state, size_t layer) const;
    bool is_fixed_out(const MckpItem& base, const MckpItem& item) const;
    size_t count_open_items(size_t layer) const;
    void expand(size_t layer);
    void merge(std::vector<State>& into, const std::vector<State>& other);
    std::vector<uint32_t> read_back(size_t layer, const State& state) const;

    const MckpSolver& solver_;
    int64_t capacity_;
    const Relaxation& relaxed_;
    int64_t best_value_ = std::numeric_limits<int64_t>::max();
    std::vector<uint32_t> best_choice_;
    std::vector<uint32_t> core_;              // classes in the order in which they are decided
    std::vector<Slope> best_up_, best_down_;  // over core_[layer..]: the bounds' slopes
    std::vector<State> states_, shifted_, scratch_;
    std::vector<std::vector<Back>> layers_;
    size_t n_states_ = 0;
};

void MckpSolver::Search::consider(std::vector<uint32_t> choice) {
    // Top up greedily with the best gain per weight that fits; ends, as every move lowers the
    // value.
    int64_t weight = 0, value = 0;
    for (size_t c = 0; c < choice.size(); ++c) {
        weight += solver_.classes_[c][choice[c]].weight;
        value += solver_.classes_[c][choice[c]].value;
    }
    while (weight <= capacity_) {
        Slope best;
        size_t best_class = 0;
        uint32_t best_item = 0;
        for (size_t c = 0; c < choice.size(); ++c) {
            const MckpClass& items = solver_.classes_[c];
            const MckpItem& now = items[choice[c]];
            for (uint32_t i = choice[c] + 1;
                 i < items.size() && weight + items[i].weight - now.weight <= capacity_; ++i) {
                const Slope slope{now.value - items[i].value, items[i].weight - now.weight};
                if (steeper(slope, best)) {
                    best = slope;
                    best_class = c;
                    best_item = i;
                }
            }
        }
        if (best.gain == 0) {
            break;
        }
        choice[best_class] = best_item;
        weight += best.weight;
        value -= best.gain;
    }
    if (weight <= capacity_ && value < best_value_) {
        best_value_ = value;
        best_choice_ = std::move(choice);
    }
}

void MckpSolver::Search::start_from_heuristics() {
    consider(relaxed_.choice);
    // The step that does not fit, paid for by the cheapest single downgrade elsewhere.
    const Step& step = *relaxed_.next;
    std::vector<uint32_t> choice = relaxed_.choice;
    choice[step.class_index] = solver_.hulls_[step.class_index][step.to];
    const int64_t excess = relaxed_.weight + step.weight - capacity_;
    int64_t least_loss = std::numeric_limits<int64_t>::max();
    std::pair<size_t, uint32_t> cheapest;
    for (size_t c = 0; c < choice.size(); ++c) {
        const MckpClass& items = solver_.classes_[c];
        for (uint32_t i = 0; i < choice[c]; ++i) {
            const int64_t loss = items[i].value - items[choice[c]].value;
            if (items[choice[c]].weight - items[i].weight >= excess && loss < least_loss) {
                least_loss = loss;
                cheapest = {c, i};
            }
        }
    }
    if (least_loss != std::numeric_limits<int64_t>::max()) {
        choice[cheapest.first] = cheapest.second;
        consider(std::move(choice));
    }
}

void MckpSolver::Search::order_core() {
    // Only the order is decided in floating point: any order gives the same optimum.
    const double threshold =
        static_cast<double>(relaxed_.next->gain) / static_cast<double>(relaxed_.next->weight);
    const size_t n = solver_.classes_.size();
    std::vector<Slope> up(n, Slope{0, 1}), down(n, Slope{1, 0});
    std::vector<double> distance(n, std::numeric_limits<double>::infinity());
    for (const Step& step : solver_.steps_) {
        const uint32_t c = step.class_index;
        const double slope = static_cast<double>(step.gain) / static_cast<double>(step.weight);
        if (step.to == relaxed_.level[c] + 1) {
            up[c] = {step.gain, step.weight};
        } else if (step.to == relaxed_.level[c]) {
            down[c] = {step.gain, step.weight};
        } else {
            continue;
        }
        distance[c] = std::min(distance[c], std::abs(slope - threshold));
    }
    for (uint32_t c = 0; c < n; ++c) {
        if (solver_.classes_[c].size() > 1) {
            core_.push_back(c);
        }
    }
    std::stable_sort(core_.begin(), core_.end(),
                     [&](uint32_t a, uint32_t b) { return distance[a] < distance[b]; });
    best_up_.assign(core_.size() + 1, Slope{0, 1});
    best_down_.assign(core_.size() + 1, Slope{1, 0});
    for (size_t layer = core_.size(); layer-- > 0;) {
        const uint32_t c = core_[layer];
        best_up_[layer] = steeper(up[c], best_up_[layer + 1]) ? up[c] : best_up_[layer + 1];
        best_down_[layer] =
            steeper(best_down_[layer + 1], down[c]) ? down[c] : best_down_[layer + 1];
    }
}

/// No completion by core_[layer..] can be better than the best known solution.
bool MckpSolver::Search::is_hopeless(int64_t weight, int64_t value, size_t layer) const {
    if (weight <= capacity_) {
        const Slope& up = best_up_[layer];
        return Int128{value - best_value_} * up.weight >= Int128{capacity_ - weight} * up.gain;
    }
    const Slope& down = best_down_[layer];
    return down.weight == 0 ||
           Int128{weight - capacity_} * down.gain >= Int128{best_value_ - value} * down.weight;
}

int64_t MckpSolver::Search::bound(const State& state, size_t layer) const {
    if (state.weight <= capacity_) {
        const Slope& up = best_up_[layer];
        return state.value -
               static_cast<int64_t>(Int128{capacity_ - state.weight} * up.gain / up.weight);
    }
    const Slope& down = best_down_[layer];
    if (down.weight == 0) {
        return best_value_;
    }
    const Int128 loss = Int128{state.weight - capacity_} * down.gain / down.weight;
    return static_cast<int64_t>(std::min(Int128{best_value_}, Int128{state.value} + loss));
}

/// Reduced-cost test: taking `item` instead of the relaxation's `base` can't beat the best known
/// solution.
bool MckpSolver::Search::is_fixed_out(const MckpItem& base, const MckpItem& item) const {
    const Step& step = *relaxed_.next;
    const Int128 room =
        Int128{capacity_ - relaxed_.weight - (item.weight - base.weight)} * step.gain;
    const Int128 needed =
        Int128{best_value_ - relaxed_.value - (item.value - base.value)} * step.weight;
    return -room >= needed;
}

/// How many items of core_[layer] are still possible: the factor by which states may multiply.
size_t MckpSolver::Search::count_open_items(size_t layer) const {
    const MckpClass& items = solver_.classes_[core_[layer]];
    const MckpItem& base = items[relaxed_.choice[core_[layer]]];
    return static_cast<size_t>(std::count_if(items.begin(), items.end(), [&](const MckpItem& item) {
        return item == base || !is_fixed_out(base, item);
    }));
}

/// Merges two lists sorted by weight and drops dominated states; of equals, those of `into` stay.
void MckpSolver::Search::merge(std::vector<State>& into, const std::vector<State>& other) {
    scratch_.clear();
    scratch_.reserve(into.size() + other.size());
    size_t i = 0, j = 0;
    while (i < into.size() || j < other.size()) {
        const bool take_first =
            j == other.size() || (i < into.size() && (into[i].weight != other[j].weight
                                                          ? into[i].weight < other[j].weight
                                                          : into[i].value <= other[j].value));
        const State& state = take_first ? into[i++] : other[j++];
        if (scratch_.empty() || state.value < scratch_.back().value) {
            scratch_.push_back(state);
        }
    }
    std::swap(into, scratch_);
}

/// Decides class core_[layer] in every state.
void MckpSolver::Search::expand(size_t layer) {
    const uint32_t c = core_[layer];
    const MckpClass& items = solver_.classes_[c];
    const uint32_t base_index = relaxed_.choice[c];
    const MckpItem base = items[base_index];
    std::vector<State> next;
    for (uint32_t i = 0; i < items.size(); ++i) {
        if (i != base_index && is_fixed_out(base, items[i])) {
            continue;
        }
        shifted_.clear();
        const int64_t more_weight = items[i].weight - base.weight,
                      more_value = items[i].value - base.value;
        for (uint32_t parent = 0; parent < states_.size(); ++parent) {
            const int64_t weight = states_[parent].weight + more_weight;
            const int64_t value = states_[parent].value + more_value;
            // A state that is itself a better solution stays, even if nothing can improve on it.
            if (!is_hopeless(weight, value, layer + 1)) {
                shifted_.push_back({weight, value, parent, i});
            }
        }
        merge(next, shifted_);
    }
    // Values fall with weight: the last state within the capacity is the best complete solution.
    const auto over = std::find_if(next.begin(), next.end(),
                                   [&](const State& s) { return s.weight > capacity_; });
    if (over != next.begin() && (over - 1)->value < best_value_) {
        best_value_ = (over - 1)->value;
        best_choice_ = read_back(layer, *(over - 1));
        std::erase_if(next,
                      [&](const State& s) { return is_hopeless(s.weight, s.value, layer + 1); });
    }
    std::vector<Back> back;
    back.reserve(next.size());
    for (const State& state : next) {
        back.push_back({state.parent, state.item});
    }
    layers_.push_back(std::move(back));
    n_states_ += next.size();
    states_ = std::move(next);
}

std::vector<uint32_t> MckpSolver::Search::read_back(size_t layer, const State& state) const {
    std::vector<uint32_t> choice = relaxed_.choice;
    choice[core_[layer]] = state.item;
    uint32_t parent = state.parent;
    for (size_t l = layer; l-- > 0;) {
        const Back& back = layers_[l][parent];
        choice[core_[l]] = back.item;
        parent = back.parent;
    }
    return choice;
}

MckpResult MckpSolver::Search::run(size_t max_states) {
    start_from_heuristics();
    order_core();
    states_ = {{relaxed_.weight, relaxed_.value, 0, 0}};
    size_t layer = 0;
    while (layer < core_.size() && !states_.empty() &&
           n_states_ + states_.size() * count_open_items(layer) <= max_states) {
        expand(layer++);
    }
    MckpResult out;
    out.value = out.lower_bound = best_value_;
    if (layer < core_.size()) {
        for (const State& state : states_) {
            out.lower_bound = std::min(out.lower_bound, bound(state, layer));
        }
        out.lower_bound =
            std::max(out.lower_bound, std::min(best_value_, solver_.relaxed_bound(capacity_)));
    }
    out.choice = std::move(best_choice_);
    out.n_states = n_states_;
    return out;
}

MckpResult MckpSolver::solve(int64_t capacity, size_t max_states) const {
    const Relaxation relaxed = relax(capacity);
    MckpResult out;
    if (relaxed.next == nullptr) {
        out.choice = relaxed.choice;
        out.value = out.lower_bound = relaxed.value;
    } else {
        out = Search(*this, capacity, relaxed).run(max_states);
    }
    canonicalize(out.choice);
    return out;
}

}  // namespace voodoo::search::detail
