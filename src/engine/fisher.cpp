#include "engine/fisher.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace voodoo::engine {

bool FisherProbe::probe_row(uint64_t sequence, int64_t position, float* logits) const {
    const float max = *std::max_element(logits, logits + n_vocab_);
    double sum = 0.0;
    for (int64_t v = 0; v < n_vocab_; ++v) {
        logits[v] = std::exp(logits[v] - max);
        sum += static_cast<double>(logits[v]);
    }
    if (!std::isfinite(sum)) return false;
    const auto scale = static_cast<float>(1.0 / sum);
    Random random(seed_, fmt::format("fisher {} {}", sequence, position));
    uint64_t signs = 0;
    const auto root = [&](int64_t v) {
        const float r = std::sqrt(logits[v] * scale);
        return (signs >> (v % 64)) & 1U ? r : -r;
    };
    // Twice over the vocabulary with the same signs: first sqrt(p) . z, then v.
    const Random start = random;
    double dot = 0.0;
    for (int64_t v = 0; v < n_vocab_; ++v) {
        if (v % 64 == 0) signs = random.bits();
        dot += static_cast<double>(root(v));
    }
    random = start;
    const auto common = static_cast<float>(dot);
    for (int64_t v = 0; v < n_vocab_; ++v) {
        if (v % 64 == 0) signs = random.bits();
        logits[v] = root(v) - logits[v] * scale * common;
    }
    return true;
}

void FisherProbe::add(int batch, int64_t first, int64_t n, float* logits, bool want_gradient) {
    VOODOO_CHECK(want_gradient, "a probe is a gradient");
    std::atomic<bool> finite{true};
    pool_.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            float* row = logits + i * n_vocab_;
            if (first + i < skip_) {
                std::fill_n(row, n_vocab_, 0.0F);
            } else if (!probe_row(sequence_ + static_cast<uint64_t>(batch), first + i, row)) {
                finite = false;
            }
        }
    });
    finite_ = finite_ && finite;
}

}  // namespace voodoo::engine
