// The rival that every search result has to beat: the best mix of two adjacent types at a size, as
// one would make it by hand. Gives candidate plans, measuring them is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace voodoo::search {

/// A tensor with its legal types.
struct MixTensor {
    std::string name;
    std::vector<std::string> types;  ///< legal ones
    std::vector<uint64_t> bytes;     ///< of each, padding included
    double sensitivity =
        0.0;  ///< predicted gain per byte of the larger type; used by MixOrder::sensitivity
};

enum class MixOrder {
    file,         ///< the first tensors get the larger type
    sensitivity,  ///< the most sensitive ones do; file order among equals
};

struct MixOptions {
    MixOrder order = MixOrder::file;
    size_t max_candidates = 2;
};

struct MixCandidate {
    std::string name;                ///< "Q4_K+Q3_K", or "Q4_K" where one type is all
    std::vector<std::string> types;  ///< per tensor
    uint64_t total_bytes = 0;        ///< fixed bytes included
    size_t n_upper = 0;              ///< tensors with the larger type of the pair
};

/// For each pair of neighbours in `type_order` (ascending size) whose lower type fits the budget:
/// every tensor gets the lower type, then, in order, the larger one where it still fits. A type
/// that is not legal for a tensor is replaced by the next larger legal one, or by its largest. The
/// candidates that use most of the budget come first; equal plans appear once. Throws Error(usage)
/// on ill-formed input, Error(infeasible_budget) if not even the smallest type fits.
std::vector<MixCandidate> uniform_mixes(std::span<const MixTensor> tensors,
                                        std::span<const std::string> type_order,
                                        uint64_t fixed_bytes, uint64_t budget_bytes,
                                        const MixOptions& options = {});

}  // namespace voodoo::search
