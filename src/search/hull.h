// The lower convex hull of (bytes, cost): the types of a tensor that are the best choice at some
// price per byte.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace voodoo::search {

/// Indices of the hull's points, ascending in bytes and strictly descending in cost; the cheapest
/// cost (of equals the one with fewest bytes) is the last. bytes and cost: same length, finite.
std::vector<size_t> lower_hull(std::span<const double> bytes, std::span<const double> cost);

}  // namespace voodoo::search
