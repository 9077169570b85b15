// Several gradients that one custom kernel computes together: one node holds them all, each part is
// a view of it.
#pragma once

#include <array>
#include <cstdint>

#include "autodiff/tape.h"

namespace voodoo::autodiff::rules {

/// Places of up to kMaxParts arrays in one F32 vector, in elements.
class PackedLayout {
public:
    static constexpr int kMaxParts = 8;

    /// Adds part `i` of n elements.
    void add(int i, int64_t n) {
        offset_[i] = size_;
        // Whole cache lines, so that threads that write neighbouring parts don't share one.
        size_ += (n + 15) / 16 * 16;
    }
    int64_t size() const { return size_; }
    float* part(ggml_tensor* packed, int i) const {
        return static_cast<float*>(packed->data) + offset_[i];
    }
    /// Part `i` of the node as a tensor of shape `ne`.
    ggml_tensor* view(Tape& tape, ggml_tensor* packed, int i, const Shape& ne) const {
        const auto row = sizeof(float) * static_cast<size_t>(ne[0]);
        const auto plane = row * static_cast<size_t>(ne[1]);
        return ggml_view_4d(tape.context(), packed, ne[0], ne[1], ne[2], ne[3], row, plane,
                            plane * static_cast<size_t>(ne[2]),
                            sizeof(float) * static_cast<size_t>(offset_[i]));
    }

private:
    std::array<int64_t, kMaxParts> offset_{};
    int64_t size_ = 0;
};

}  // namespace voodoo::autodiff::rules
