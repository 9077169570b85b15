/// SSM_CONV: a short causal convolution along ne0 (time), each channel c with its own kernel:
///   y[c, t] = sum_i x[t + i, c] w[i, c]        x: [K - 1 + T, C, sequences], w: [K, C]
///   x_grad[u, c] = sum_i out_grad[c, u - i] w[i, c]
///   w_grad[i, c] = sum over t and sequences of out_grad[c, t] x[t + i, c]
/// Needs: x, w. Checked in tests/autodiff/gradcheck/recurrent_cases.cpp
#include <algorithm>
#include <vector>

#include "autodiff/kernels.h"
#include "autodiff/rules/packed_grads.h"
#include "autodiff/rules/rules.h"
#include "autodiff/rules/simd_rows.h"

namespace voodoo::autodiff::rules {

namespace {

constexpr int64_t kChannels = 16;  // one cache line of out_grad

struct ConvParams {
    PackedLayout layout;
};

/// src: x, w, out_grad. A thread takes blocks of channels, whose out_grad it turns to rows of time.
void conv_kernel(ggml_tensor* dst, int ith, int nth, void* userdata) {
    const PackedLayout& layout = static_cast<const ConvParams*>(userdata)->layout;
    const ggml_tensor* x = dst->src[0];
    const ggml_tensor* w = dst->src[1];
    const ggml_tensor* out_grad = dst->src[2];
    const int64_t n_taps = w->ne[0];
    const int64_t n_channels = w->ne[1];
    const int64_t n_tokens = out_grad->ne[1];
    const kernels::Range blocks =
        kernels::share((n_channels + kChannels - 1) / kChannels, ith, nth);
    std::vector<float> rows(static_cast<size_t>(kChannels * n_tokens));
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        const int64_t first = block * kChannels;
        const int64_t n = std::min(kChannels, n_channels - first);
        float* w_grad = layout.part(dst, 1) + first * n_taps;
        std::fill(w_grad, w_grad + n * n_taps, 0.0F);
        for (int64_t s = 0; s < x->ne[2]; ++s) {
            for (int64_t t = 0; t < n_tokens; ++t) {
                const float* from = kernels::f32_row(out_grad, t + n_tokens * s) + first;
                for (int64_t c = 0; c < n; ++c) {
                    rows[c * n_tokens + t] = from[c];
                }
            }
            for (int64_t c = 0; c < n; ++c) {
                const int64_t row = first + c + n_channels * s;
                conv_grad_row({n_taps, n_tokens, kernels::f32_row(x, row),
                               kernels::f32_row(w, first + c), rows.data() + c * n_tokens,
                               layout.part(dst, 0) + row * x->ne[0], w_grad + c * n_taps});
            }
        }
    }
}

}  // namespace

Grads ssm_conv(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ConvParams params;
    params.layout.add(0, ggml_nelements(node->src[0]));
    params.layout.add(1, ggml_nelements(node->src[1]));
    ggml_tensor* const args[] = {node->src[0], node->src[1], out_grad};
    ggml_tensor* packed =
        tape.custom(GGML_TYPE_F32, {params.layout.size(), 1, 1, 1}, args, conv_kernel, params);
    Grads grads{};
    for (int i = 0; i < 2; ++i) {
        if (needs[i]) {
            grads[i] = params.layout.view(tape, packed, i, shape_of(node->src[i]));
        }
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
