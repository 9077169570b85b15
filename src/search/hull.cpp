#include "search/hull.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace voodoo::search {

std::vector<size_t> lower_hull(std::span<const double> bytes, std::span<const double> cost) {
    VOODOO_CHECK(bytes.size() == cost.size(), "{} sizes and {} costs", bytes.size(), cost.size());
    std::vector<size_t> order(bytes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        if (bytes[a] != bytes[b]) return bytes[a] < bytes[b];
        return cost[a] != cost[b] ? cost[a] < cost[b] : a < b;
    });
    // Whether b lies on or above the line from a to c.
    const auto above = [&](size_t a, size_t b, size_t c) {
        return (cost[b] - cost[a]) * (bytes[c] - bytes[a]) >=
               (cost[c] - cost[a]) * (bytes[b] - bytes[a]);
    };
    std::vector<size_t> hull;
    for (const size_t i : order) {
        if (!hull.empty() && cost[i] >= cost[hull.back()]) continue;
        while (hull.size() >= 2 && above(hull[hull.size() - 2], hull.back(), i)) hull.pop_back();
        hull.push_back(i);
    }
    return hull;
}

}  // namespace voodoo::search
