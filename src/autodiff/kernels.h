// Multithreaded CPU kernels behind the tape's custom nodes: strided copies and transposes, sums,
// window scatters. All follow ggml_custom_op_t: thread `ith` of `nth` does its share of `dst`.
#pragma once

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace voodoo::autodiff::kernels {

struct Range {
    int64_t begin;
    int64_t end;
};

/// Share `ith` of `nth` of [0, n).
inline Range share(int64_t n, int ith, int nth) {
    const int64_t step = (n + nth - 1) / nth;
    const int64_t begin = std::min<int64_t>(n, step * ith);
    return {begin, std::min<int64_t>(n, begin + step)};
}

/// Start of row (i1, i2, i3), numbered r = i1 + ne1 (i2 + ne2 i3).
inline char* row_pointer(const ggml_tensor* t, int64_t r) {
    const int64_t i1 = r % t->ne[1];
    const int64_t i23 = r / t->ne[1];
    const int64_t i2 = i23 % t->ne[2];
    const int64_t i3 = i23 / t->ne[2];
    return static_cast<char*>(t->data) + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

inline float* f32_row(const ggml_tensor* t, int64_t r) {
    return reinterpret_cast<float*>(row_pointer(t, r));
}

struct CopyParams {
    /// Read src[0] with ne0 and ne1 swapped.
    bool swap01 = false;
};

/// dst (contiguous; F32 or BF16) = src[0] (F32, F16 or BF16, any strides), transposed if params say
/// so. CopyParams.
void copy(ggml_tensor* dst, int ith, int nth, void* params);

struct NoParams {};

/// dst = 0. NoParams.
void zero(ggml_tensor* dst, int ith, int nth, void* params);

/// dst[i] = sum of src[0][i + k ne] over the repeats k, accumulated in double. NoParams.
void reduce(ggml_tensor* dst, int ith, int nth, void* params);

/// One strided window of a root: dims sorted by stride in the root, all counted in elements.
struct Window {
    std::array<int64_t, 4> ne;
    std::array<int64_t, 4> root_stride;
    std::array<int64_t, 4> grad_stride;
    int64_t root_offset = 0;
};

constexpr int kMaxWindows = GGML_MAX_SRC - 2;

struct ScatterParams {
    int n_windows = 0;
    /// The argument after the windows holds the start value; else zero.
    bool has_base = false;
    std::array<Window, kMaxWindows> windows;
};

/// dst = base (or 0) + each window's gradient src[i] (contiguous F32) at its place. ScatterParams.
void scatter_windows(ggml_tensor* dst, int ith, int nth, void* params);

}  // namespace voodoo::autodiff::kernels
