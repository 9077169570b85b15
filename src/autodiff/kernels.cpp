// CPU kernels of the tape's custom nodes.
#include "autodiff/kernels.h"

#include <cstring>

namespace voodoo::autodiff::kernels {

namespace {

constexpr int64_t kTile = 16;  // 16 floats are one cache line

struct Bf16 {
    uint16_t bits;
};
struct F16 {
    ggml_fp16_t bits;
};

inline float load(float v) {
    return v;
}
inline float load(F16 v) {
    return ggml_fp16_to_fp32(v.bits);
}
inline float load(Bf16 v) {
    const uint32_t wide = static_cast<uint32_t>(v.bits) << 16;
    float out = 0.0F;
    std::memcpy(&out, &wide, sizeof(out));
    return out;
}

inline void store(float v, float* to) {
    *to = v;
}
/// Rounds to nearest even; NaN stays NaN.
inline void store(float v, Bf16* to) {
    uint32_t bits = 0;
    std::memcpy(&bits, &v, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    const uint32_t rounded = is_nan ? (bits | 0x400000U) : bits + 0x7fffU + ((bits >> 16) & 1U);
    to->bits = static_cast<uint16_t>(rounded >> 16);
}

struct Source {
    const char* data;
    std::array<int64_t, 4> nb;
};

template <class Src, class Dst>
void copy_rows(ggml_tensor* dst, const Source& source, int ith, int nth) {
    const Range rows = share(ggml_nrows(dst), ith, nth);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t i1 = r % dst->ne[1];
        const int64_t i2 = r / dst->ne[1] % dst->ne[2];
        const int64_t i3 = r / dst->ne[1] / dst->ne[2];
        const auto* from = reinterpret_cast<const Src*>(source.data + i1 * source.nb[1] +
                                                        i2 * source.nb[2] + i3 * source.nb[3]);
        Dst* to = static_cast<Dst*>(dst->data) + r * dst->ne[0];
        for (int64_t i = 0; i < dst->ne[0]; ++i) {
            store(load(from[i]), to + i);
        }
    }
}

/// Tiles over ne0 and the dim whose source stride is smallest, so that each source line is read
/// once.
template <class Src, class Dst>
void copy_tiles(ggml_tensor* dst, const Source& source, int ith, int nth) {
    int fast = 1;
    for (int d = 2; d < 4; ++d) {
        if (dst->ne[d] > 1 && (dst->ne[fast] == 1 || source.nb[d] < source.nb[fast])) {
            fast = d;
        }
    }
    const int o1 = fast == 1 ? 2 : 1;
    const int o2 = fast == 3 ? 2 : 3;
    std::array<int64_t, 4> to_stride = {1, dst->ne[0], dst->ne[0] * dst->ne[1],
                                        dst->ne[0] * dst->ne[1] * dst->ne[2]};
    const int64_t n_strips = (dst->ne[fast] + kTile - 1) / kTile;
    const Range work = share(n_strips * dst->ne[o1] * dst->ne[o2], ith, nth);
    Src tile[kTile][kTile];
    for (int64_t w = work.begin; w < work.end; ++w) {
        const int64_t f0 = w % n_strips * kTile;
        const int64_t i1 = w / n_strips % dst->ne[o1];
        const int64_t i2 = w / n_strips / dst->ne[o1];
        const int64_t n_fast = std::min(kTile, dst->ne[fast] - f0);
        const char* from =
            source.data + f0 * source.nb[fast] + i1 * source.nb[o1] + i2 * source.nb[o2];
        Dst* to = static_cast<Dst*>(dst->data) + f0 * to_stride[fast] + i1 * to_stride[o1] +
                  i2 * to_stride[o2];
        for (int64_t c0 = 0; c0 < dst->ne[0]; c0 += kTile) {
            const int64_t n_col = std::min(kTile, dst->ne[0] - c0);
            for (int64_t c = 0; c < n_col; ++c) {
                const char* line = from + (c0 + c) * source.nb[0];
                if (source.nb[fast] == static_cast<int64_t>(sizeof(Src)) && n_fast == kTile) {
                    std::memcpy(tile[c], line, sizeof(tile[c]));
                } else {
                    for (int64_t f = 0; f < n_fast; ++f) {
                        std::memcpy(&tile[c][f], line + f * source.nb[fast], sizeof(Src));
                    }
                }
            }
            for (int64_t f = 0; f < n_fast; ++f) {
                Dst* out = to + f * to_stride[fast] + c0;
                for (int64_t c = 0; c < n_col; ++c) {
                    store(load(tile[c][f]), out + c);
                }
            }
        }
    }
}

template <class Src, class Dst>
void copy_as(ggml_tensor* dst, const Source& source, int ith, int nth) {
    if (source.nb[0] == static_cast<int64_t>(sizeof(Src))) {
        copy_rows<Src, Dst>(dst, source, ith, nth);
    } else {
        copy_tiles<Src, Dst>(dst, source, ith, nth);
    }
}

template <class Src>
void copy_from(ggml_tensor* dst, const Source& source, int ith, int nth) {
    if (dst->type == GGML_TYPE_BF16) {
        copy_as<Src, Bf16>(dst, source, ith, nth);
    } else {
        copy_as<Src, float>(dst, source, ith, nth);
    }
}

/// Adds the part of a window that lies in the thread's `range` of root elements.
class WindowAdder {
public:
    WindowAdder(const Window& window, const float* grad, float* root, Range range)
        : window_(window), grad_(grad), root_(root), range_(range) {
        extent_[0] = 1;
        for (int d = 0; d < 4; ++d) {
            extent_[d + 1] = extent_[d] + (window.ne[d] - 1) * window.root_stride[d];
        }
    }

    void run() { add(3, window_.root_offset, 0); }

private:
    /// Slices of dim d start root_stride[d] apart and are extent_[d] long, so those in range are
    /// one interval.
    void add(int d, int64_t root_at, int64_t grad_at) {
        const int64_t stride = window_.root_stride[d];
        int64_t first = 0;
        int64_t last = window_.ne[d];
        if (window_.ne[d] > 1) {
            const int64_t before = range_.begin - root_at - extent_[d] + 1;
            first = before <= 0 ? 0 : (before + stride - 1) / stride;
            const int64_t room = range_.end - root_at;
            last = room <= 0 ? 0 : std::min(last, (room + stride - 1) / stride);
        } else if (root_at >= range_.end || root_at + extent_[d] <= range_.begin) {
            return;
        }
        if (d == 0) {
            for (int64_t i = first; i < last; ++i) {
                root_[root_at + i * stride] += grad_[grad_at + i * window_.grad_stride[0]];
            }
            return;
        }
        for (int64_t i = first; i < last; ++i) {
            add(d - 1, root_at + i * stride, grad_at + i * window_.grad_stride[d]);
        }
    }

    const Window& window_;
    const float* grad_;
    float* root_;
    Range range_;
    std::array<int64_t, 5> extent_;
};

}  // namespace

void copy(ggml_tensor* dst, int ith, int nth, void* params) {
    const ggml_tensor* src = dst->src[0];
    Source source{static_cast<const char*>(src->data),
                  {static_cast<int64_t>(src->nb[0]), static_cast<int64_t>(src->nb[1]),
                   static_cast<int64_t>(src->nb[2]), static_cast<int64_t>(src->nb[3])}};
    if (static_cast<const CopyParams*>(params)->swap01) {
        std::swap(source.nb[0], source.nb[1]);
    }
    if (src->type == GGML_TYPE_F16) {
        copy_from<F16>(dst, source, ith, nth);
    } else if (src->type == GGML_TYPE_BF16) {
        copy_from<Bf16>(dst, source, ith, nth);
    } else {
        copy_from<float>(dst, source, ith, nth);
    }
}

void zero(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const Range range = share(ggml_nelements(dst), ith, nth);
    std::fill(static_cast<float*>(dst->data) + range.begin,
              static_cast<float*>(dst->data) + range.end, 0.0F);
}

void reduce(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const ggml_tensor* src = dst->src[0];
    constexpr int64_t kBlock = 64;
    const int64_t n_blocks = (dst->ne[0] + kBlock - 1) / kBlock;
    const Range work = share(n_blocks * ggml_nrows(dst), ith, nth);
    double sums[kBlock];
    for (int64_t w = work.begin; w < work.end; ++w) {
        const int64_t r = w / n_blocks;
        const int64_t c0 = w % n_blocks * kBlock;
        const int64_t n = std::min(kBlock, dst->ne[0] - c0);
        const int64_t i1 = r % dst->ne[1];
        const int64_t i2 = r / dst->ne[1] % dst->ne[2];
        const int64_t i3 = r / dst->ne[1] / dst->ne[2];
        std::fill(sums, sums + n, 0.0);
        for (int64_t k3 = i3; k3 < src->ne[3]; k3 += dst->ne[3]) {
            for (int64_t k2 = i2; k2 < src->ne[2]; k2 += dst->ne[2]) {
                for (int64_t k1 = i1; k1 < src->ne[1]; k1 += dst->ne[1]) {
                    const float* row = f32_row(src, k1 + src->ne[1] * (k2 + src->ne[2] * k3));
                    for (int64_t k0 = c0; k0 < src->ne[0]; k0 += dst->ne[0]) {
                        for (int64_t c = 0; c < n; ++c) {
                            sums[c] += static_cast<double>(row[k0 + c]);
                        }
                    }
                }
            }
        }
        float* out = f32_row(dst, r) + c0;
        for (int64_t c = 0; c < n; ++c) {
            out[c] = static_cast<float>(sums[c]);
        }
    }
}

void scatter_windows(ggml_tensor* dst, int ith, int nth, void* params) {
    const auto& scatter = *static_cast<const ScatterParams*>(params);
    const Range range = share(ggml_nelements(dst), ith, nth);
    auto* root = static_cast<float*>(dst->data);
    if (scatter.has_base) {
        const auto* base = static_cast<const float*>(dst->src[scatter.n_windows]->data);
        std::copy(base + range.begin, base + range.end, root + range.begin);
    } else {
        std::fill(root + range.begin, root + range.end, 0.0F);
    }
    for (int i = 0; i < scatter.n_windows; ++i) {
        WindowAdder(scatter.windows[i], static_cast<const float*>(dst->src[i]->data), root, range)
            .run();
    }
}

}  // namespace voodoo::autodiff::kernels
