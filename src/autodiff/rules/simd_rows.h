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

/// value = x sigmoid(v(x)), slope its derivative: SILU, GELU (tanh form: sigmoid of twice the inner
/// function) and GELU_QUICK. Relative error about 1e-6. NaN in, NaN out.
void sigmoid_gate_row(int64_t n, const float* x, GatePolynomial v, float* value, float* slope);

/// out = scale y (g - sum(y g)).
void soft_max_grad_row(int64_t n, const float* y, const float* g, float scale, float* out);

}  // namespace voodoo::autodiff::rules
