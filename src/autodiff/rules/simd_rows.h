// Row loops that must be vectorised to keep up with the matmuls. Each is compiled for several x86
// levels (chosen at load time) where the compiler can do that, else once.
#pragma once

#include <cstdint>

namespace voodoo::autodiff::rules {

/// v(x) = x (linear + cubic x^2).
struct GatePolynomial {
    float linear;
    float cubic;
};

/// out = exp(x), x clamped to +-87. Relative error about 3e-7.
void exp_row(int64_t n, const float* x, float* out);

/// value = x sigmoid(v(x)), slope its derivative: SILU, GELU (tanh form: sigmoid of twice the inner
/// function) and GELU_QUICK. Relative error about 1e-6. NaN in, NaN out.
void sigmoid_gate_row(int64_t n, const float* x, GatePolynomial v, float* value, float* slope);

/// out = scale y (g - sum(y g)).
void soft_max_grad_row(int64_t n, const float* y, const float* g, float scale, float* out);

/// One channel of a short convolution y_t = sum_i x_{t+i} w_i; x and x_grad have n_tokens + n_taps
/// - 1 elements.
struct ConvRow {
    int64_t n_taps;
    int64_t n_tokens;
    const float* x;
    const float* w;
    const float* out_grad;
    float* x_grad;
    float* w_grad;
};

/// x_grad = the transposed convolution of out_grad; w_grad += the products of out_grad and x.
void conv_grad_row(const ConvRow& row);

}  // namespace voodoo::autodiff::rules
