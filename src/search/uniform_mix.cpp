#include "search/uniform_mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace voodoo::search {
namespace {

/// Index into tensor.types of `type_order[rank]`, else of the next larger legal type, else of the
/// largest.
size_t legal_index(const MixTensor& tensor, std::span<const std::string> type_order, size_t rank) {
    const auto position = [&](size_t r) {
        return static_cast<size_t>(
            std::find(tensor.types.begin(), tensor.types.end(), type_order[r]) -
            tensor.types.begin());
    };
    for (size_t r = rank; r < type_order.size(); ++r) {
        if (const size_t at = position(r); at < tensor.types.size()) {
            return at;
        }
    }
    for (size_t r = rank; r-- > 0;) {
        if (const size_t at = position(r); at < tensor.types.size()) {
            return at;
        }
    }
    // None of its types is in the order: its largest one.
    return static_cast<size_t>(std::max_element(tensor.bytes.begin(), tensor.bytes.end()) -
                               tensor.bytes.begin());
}

void validate_input(std::span<const MixTensor> tensors, std::span<const std::string> type_order) {
    if (type_order.empty()) {
        throw Error(ErrorKind::usage, "a uniform mix needs at least one type", "uniform_mix");
    }
    for (const MixTensor& tensor : tensors) {
        if (tensor.types.empty() || tensor.types.size() != tensor.bytes.size() ||
            std::isnan(tensor.sensitivity)) {
            throw Error(ErrorKind::usage,
                        fmt::format("tensor {} has no types or ill-formed ones", tensor.name),
                        "uniform_mix");
        }
    }
}

std::vector<size_t> fill_order(std::span<const MixTensor> tensors, MixOrder order) {
    std::vector<size_t> out(tensors.size());
    std::iota(out.begin(), out.end(), size_t{0});
    if (order == MixOrder::sensitivity) {
        std::stable_sort(out.begin(), out.end(), [&](size_t a, size_t b) {
            return tensors[a].sensitivity > tensors[b].sensitivity;
        });
    }
    return out;
}

/// What every tensor gets under the type of a rank, and the whole file's size.
struct Level {
    std::vector<size_t> choice;
    uint64_t total_bytes = 0;
};

Level make_level(std::span<const MixTensor> tensors, std::span<const std::string> type_order,
                 size_t rank, uint64_t fixed_bytes) {
    Level level{{}, fixed_bytes};
    for (const MixTensor& tensor : tensors) {
        level.choice.push_back(legal_index(tensor, type_order, rank));
        level.total_bytes += tensor.bytes[level.choice.back()];
    }
    return level;
}

}  // namespace

std::vector<MixCandidate> uniform_mixes(std::span<const MixTensor> tensors,
                                        std::span<const std::string> type_order,
                                        uint64_t fixed_bytes, uint64_t budget_bytes,
                                        const MixOptions& options) {
    validate_input(tensors, type_order);
    std::vector<Level> levels;
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t rank = 0; rank < type_order.size(); ++rank) {
        levels.push_back(make_level(tensors, type_order, rank, fixed_bytes));
        least = std::min(least, levels.back().total_bytes);
        most = std::max(most, levels.back().total_bytes);
    }
    if (least > budget_bytes) {
        throw Error(ErrorKind::infeasible_budget,
                    fmt::format("no uniform mix fits {} bytes: they take {} to {} bytes",
                                budget_bytes, least, most),
                    "uniform_mix");
    }

    const std::vector<size_t> order = fill_order(tensors, options.order);
    std::vector<MixCandidate> out;
    for (size_t rank = 0; rank < levels.size(); ++rank) {
        if (levels[rank].total_bytes > budget_bytes) {
            continue;
        }
        // The largest type has no neighbour above: the pair is the type with itself.
        const size_t upper = std::min(rank + 1, levels.size() - 1);
        Level mix = levels[rank];
        size_t n_upper = 0;
        for (const size_t t : order) {
            const size_t low = mix.choice[t], high = levels[upper].choice[t];
            const uint64_t without = mix.total_bytes - tensors[t].bytes[low];
            if (high == low || without + tensors[t].bytes[high] > budget_bytes) {
                continue;
            }
            mix.choice[t] = high;
            mix.total_bytes = without + tensors[t].bytes[high];
            ++n_upper;
        }
        MixCandidate candidate{{}, {}, mix.total_bytes, n_upper};
        const bool all_upper = mix.choice == levels[upper].choice;
        candidate.name = all_upper      ? type_order[upper]
                         : n_upper == 0 ? type_order[rank]
                                        : type_order[upper] + "+" + type_order[rank];
        for (size_t t = 0; t < tensors.size(); ++t) {
            candidate.types.push_back(tensors[t].types[mix.choice[t]]);
        }
        const bool known = std::any_of(out.begin(), out.end(), [&](const MixCandidate& other) {
            return other.types == candidate.types;
        });
        if (!known) {
            out.push_back(std::move(candidate));
        }
    }
    // Larger types first among equals, as the more precise ones.
    std::reverse(out.begin(), out.end());
    std::stable_sort(out.begin(), out.end(), [](const MixCandidate& a, const MixCandidate& b) {
        return a.total_bytes > b.total_bytes;
    });
    if (out.size() > options.max_candidates) {
        out.resize(options.max_candidates);
    }
    return out;
}

}  // namespace voodoo::search
