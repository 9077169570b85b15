// Activation functions with their derivatives, shared by UNARY and GLU: in plain C++ for the fused
// CPU nodes, and as ggml nodes for graphs that must run on any device.
#pragma once

#include <ggml.h>

#include <array>
#include <cmath>

#include "autodiff/tape.h"

namespace voodoo::autodiff::rules {

struct ValueAndSlope {
    float value;
    float slope;
};

/// Activation at x with parameters; only XIELU and gated SiLU read them.
using ActivationFn = ValueAndSlope (*)(float x, const std::array<float, 4>& params);

/// The exact function of a UNARY sub-op (GELU and GELU_QUICK without ggml's F16 table), or nullptr.
ActivationFn find_activation(ggml_unary_op op);

/// f' as a function of y = f(x), for functions where that is cheaper (TANH, SIGMOID, EXP); else
/// nullptr.
using SlopeFromOutputFn = float (*)(float y);
SlopeFromOutputFn find_slope_from_output(ggml_unary_op op);

/// Most elements that one call of activate_block takes.
constexpr int64_t kActivationBlock = 256;

/// value[i], slope[i] = the activation at x[i] for n <= kActivationBlock elements. SILU, GELU and
/// GELU_QUICK are vectorised; the others call `activation`.
void activate_block(ActivationFn activation, const std::array<float, 4>& params, int64_t n,
                    const float* x, float* value, float* slope);

/// params of a UNARY node for its ActivationFn.
std::array<float, 4> activation_params(const ggml_tensor* node);

/// Nodes for f'(x), x contiguous F32; nullptr where ggml's ops can't express it (GELU_ERF).
ggml_tensor* slope_nodes(Tape& tape, ggml_unary_op op, ggml_tensor* x,
                         const std::array<float, 4>& params);

}  // namespace voodoo::autodiff::rules
