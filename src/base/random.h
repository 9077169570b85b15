// Random numbers: every draw comes from a named stream of a seed, so that adding one consumer
// never changes another's numbers. xoshiro256** seeded by splitmix64; same numbers on every
// platform.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace voodoo {

class Random {
public:
    Random(uint64_t seed, std::string_view stream);

    uint64_t bits();
    /// Uniform in [0, 1).
    double uniform();
    /// Uniform in [0, n); n > 0.
    uint64_t below(uint64_t n);
    /// Standard normal (Box-Muller).
    double normal();

private:
    uint64_t state_[4];
    double spare_ = 0.0;
    bool has_spare_ = false;
};

/// 0 .. n - 1 in random order.
std::vector<int> shuffled_indices(int n, uint64_t seed, std::string_view stream);

}  // namespace voodoo
