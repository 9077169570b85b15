#include "base/random.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace voodoo {
namespace {

uint64_t splitmix(uint64_t& state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

uint64_t rotate_left(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

}  // namespace

Random::Random(uint64_t seed, std::string_view stream) {
    uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a of the stream's name
    for (const char c : stream) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    uint64_t mixer = seed ^ hash;
    for (auto& word : state_) word = splitmix(mixer);
}

uint64_t Random::bits() {
    const uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate_left(state_[3], 45);
    return result;
}

double Random::uniform() {
    return static_cast<double>(bits() >> 11) * 0x1.0p-53;
}

uint64_t Random::below(uint64_t n) {
    VOODOO_CHECK(n > 0, "below(0)");
    // Rejection keeps every value equally likely.
    const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    uint64_t x = bits();
    while (x >= limit) x = bits();
    return x % n;
}

double Random::normal() {
    if (has_spare_) {
        has_spare_ = false;
        return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
}

std::vector<int> shuffled_indices(int n, uint64_t seed, std::string_view stream) {
    std::vector<int> order(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
    Random random(seed, stream);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

}  // namespace voodoo
