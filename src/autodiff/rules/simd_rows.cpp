// Vectorised row loops. Not templates or inline: target_clones needs plain functions.
#include "autodiff/rules/simd_rows.h"

#include <algorithm>
#include <cstring>

#include "autodiff/x86_levels.h"

namespace voodoo::autodiff::rules {

namespace {

/// exp(x) for |x| < 87, clamped outside; branch-free. 2^n exp(r) with |r| <= ln(2)/2 and a Taylor
/// polynomial of degree 6 (error 2e-7).
__attribute__((always_inline)) inline float fast_exp(float x) {
    constexpr float kLimit = 87.0F;
    constexpr float kLog2E = 1.44269504088896341F;
    constexpr float kLn2High = 0.693145751953125F;
    constexpr float kLn2Low = 1.42860682030941723e-6F;
    constexpr float kRound =
        12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
    x = x > kLimit ? kLimit : x;
    x = x < -kLimit ? -kLimit : x;
    const float shifted = x * kLog2E + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * kLn2High) - n * kLn2Low;
    float p = 1.0F / 720.0F;
    p = p * r + 1.0F / 120.0F;
    p = p * r + 1.0F / 24.0F;
    p = p * r + 1.0F / 6.0F;
    p = p * r + 0.5F;
    p = p * r + 1.0F;
    p = p * r + 1.0F;
    uint32_t bits = 0;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits << 23U) + 0x3f800000U;
    float power = 0.0F;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

}  // namespace

VOODOO_X86_LEVELS
void exp_row(int64_t n, const float* __restrict x, float* __restrict out) {
    for (int64_t i = 0; i < n; ++i) {
        out[i] = fast_exp(x[i]);
    }
}

VOODOO_X86_LEVELS
void sigmoid_gate_row(int64_t n, const float* __restrict x, GatePolynomial v,
                      float* __restrict value, float* __restrict slope) {
    for (int64_t i = 0; i < n; ++i) {
        const float x2 = x[i] * x[i];
        const float e = fast_exp(-x[i] * (v.linear + v.cubic * x2));
        const float s = 1.0F / (1.0F + e);
        value[i] = x[i] * s;
        slope[i] = s + x[i] * s * (e * s) * (v.linear + 3.0F * v.cubic * x2);
    }
}

VOODOO_X86_LEVELS
void soft_max_grad_row(int64_t n, const float* __restrict y, const float* __restrict g, float scale,
                       float* __restrict out) {
    constexpr int64_t kLanes = 32;  // independent sums: vectorises without reassociating
    float sums[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            sums[lane] += y[i + lane] * g[i + lane];
        }
    }
    double dot = 0.0;
    for (; i < n; ++i) {
        dot += static_cast<double>(y[i] * g[i]);
    }
    for (const float sum : sums) {
        dot += static_cast<double>(sum);
    }
    const auto mean = static_cast<float>(dot);
    for (i = 0; i < n; ++i) {
        out[i] = scale * y[i] * (g[i] - mean);
    }
}

VOODOO_X86_LEVELS
void conv_grad_row(const ConvRow& row) {
    constexpr int64_t kLanes = 32;
    const float* __restrict g = row.out_grad;
    std::fill(row.x_grad, row.x_grad + row.n_tokens + row.n_taps - 1, 0.0F);
    for (int64_t tap = 0; tap < row.n_taps; ++tap) {
        const float* __restrict x = row.x + tap;
        float* __restrict x_grad = row.x_grad + tap;
        const float w = row.w[tap];
        float sums[kLanes] = {};
        int64_t t = 0;
        for (; t + kLanes <= row.n_tokens; t += kLanes) {
            for (int64_t lane = 0; lane < kLanes; ++lane) {
                x_grad[t + lane] += g[t + lane] * w;
                sums[lane] += g[t + lane] * x[t + lane];
            }
        }
        float sum = 0.0F;
        for (; t < row.n_tokens; ++t) {
            x_grad[t] += g[t] * w;
            sum += g[t] * x[t];
        }
        for (const float part : sums) {
            sum += part;
        }
        row.w_grad[tap] += sum;
    }
}

}  // namespace voodoo::autodiff::rules
