// The vjp functions of all rule families, for the registry only. Their mathematics stands in the
// family's file.
#pragma once

#include "autodiff/vjp.h"

namespace voodoo::autodiff::rules {

// elementwise.cpp
Grads add(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads sub(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads mul(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads div(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads add1(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads scale(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads sqr(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads sqrt(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads log(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads sin(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads cos(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads clamp(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads leaky_relu(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// unary.cpp (all differentiable UNARY sub-ops) and glu.cpp (all GLU sub-ops)
Grads unary(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads glu(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// matmul.cpp
Grads mul_mat(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// norm.cpp
Grads norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads rms_norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads group_norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
std::string refuse_group_norm(const ggml_tensor* node, const Needs& needs);
Grads l2_norm(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// softmax.cpp
Grads soft_max(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
std::string refuse_soft_max(const ggml_tensor* node, const Needs& needs);
Grads diag_mask(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// rope.cpp
Grads rope(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
std::string refuse_rope(const ggml_tensor* node, const Needs& needs);

// views.cpp
Grads copy(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads reshape(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads permute(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads transpose(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads view(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
std::string refuse_view(const ggml_tensor* node, const Needs& needs);
Grads pad(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
std::string refuse_pad(const ggml_tensor* node, const Needs& needs);
Grads tri(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads concat(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

/// A VIEW node and the gradient of its value.
struct ViewGrad {
    const ggml_tensor* view;
    ggml_tensor* grad;
};
/// Gradient of the root that all `views` look into: base (may be nullptr: 0) plus each window at
/// its place.
ggml_tensor* gather_windows(Tape& tape, const ggml_tensor* root, std::span<const ViewGrad> views,
                            ggml_tensor* base);

// rows.cpp
Grads get_rows(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads set_rows(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
/// The sum of `rows` (contiguous F32) by index, in the shape of `table`.
ggml_tensor* add_rows(Tape& tape, const ggml_tensor* table, ggml_tensor* rows,
                      ggml_tensor* indices);

// experts.cpp
Grads mul_mat_id(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads add_id(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// hyper_connections.cpp
Grads hc_pre(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads hc_post(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads hc_comb(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// reduce.cpp
Grads sum(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads sum_rows(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads mean(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads repeat(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

// ssm_conv.cpp, ssm_scan.cpp, delta_net.cpp, rwkv.cpp
Grads ssm_conv(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads ssm_scan(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
std::string refuse_ssm_scan(const ggml_tensor* node, const Needs& needs);
Grads gated_delta_net(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                      const Needs& needs);
std::string refuse_gated_delta_net(const ggml_tensor* node, const Needs& needs);
Grads rwkv_wkv6(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads rwkv_wkv7(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads gated_linear_attn(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                        const Needs& needs);

// triangular.cpp
Grads cumsum(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads diag(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads solve_tri(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads roll(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);
Grads set(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs);

}  // namespace voodoo::autodiff::rules
