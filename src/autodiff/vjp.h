// Reverse-mode differentiation of ggml graphs: one vjp rule per op, a backward walk that appends
// gradient nodes to the forward graph's context, and an audit that names what has no rule. Nothing
// is computed here.
#pragma once

#include <ggml.h>

#include <array>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autodiff/tape.h"

namespace voodoo::autodiff {

/// needs[i]: the gradient with respect to node->src[i] is wanted.
using Needs = std::array<bool, GGML_MAX_SRC>;
/// grads[i]: gradient of src[i], F32, contiguous, same ne as src[i]; nullptr where not wanted.
using Grads = std::array<ggml_tensor*, GGML_MAX_SRC>;

/// Gradient of one node. `node` is the forward tensor with its src[]; `out_grad` is F32,
/// contiguous, same ne as node. Only creates nodes in tape.context(); the caller has made sure that
/// refusal() is empty.
using VjpFn = Grads (*)(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                        const Needs& needs);

/// Why this node can't be differentiated for these needs; empty if it can.
using RefusalFn = std::string (*)(const ggml_tensor* node, const Needs& needs);

/// One entry of the registry.
struct Rule {
    /// "MUL_MAT", "UNARY:GELU", "GLU:SWIGLU".
    const char* name;
    ggml_op op;
    /// Unary or GLU sub-op; -1 for the others.
    int sub_op;
    /// nullptr: the gradient stops here (indices, piecewise constant functions, generated
    /// constants).
    VjpFn vjp;
    /// nullptr: every form of the op that ggml builds is supported.
    RefusalFn refuse;

    bool stops_gradient() const { return vjp == nullptr; }
};

/// All rules, one per op or sub-op.
std::span<const Rule> all_rules();

/// The rule for a node's op (and sub-op), or nullptr.
const Rule* find_rule(const ggml_tensor* node);

/// Why `rule` can't differentiate `node` for these needs (e.g. a mask that wants a gradient, a view
/// whose window overlaps itself); empty if it can.
std::string refusal(const Rule& rule, const ggml_tensor* node, const Needs& needs);

/// Values whose gradients came out, each F32, contiguous, of the value's shape. A wanted value that
/// no output depends on is absent.
struct BackwardResult {
    std::unordered_map<const ggml_tensor*, ggml_tensor*> grads;

    /// The gradient of `value` or nullptr.
    ggml_tensor* find(const ggml_tensor* value) const;
};

/// Walks the ancestors of the seeded outputs in reverse order and appends the gradient nodes to
/// tape.context(). Only nodes between wanted and outputs are differentiated. Values with several
/// uses are accumulated; the windows of one root (fused QKV) are gathered in one node.
/// Throws Error(unsupported_op) that names all nodes without a rule, before building anything.
/// @param forward_nodes topological order; must hold every node between wanted and outputs
/// @param seeds (output, cotangent): cotangent F32, contiguous, of the output's shape; an output
///     may be seeded twice
/// @param wanted leaves or inner values whose gradients must come out
BackwardResult backward(Tape& tape, std::span<ggml_tensor* const> forward_nodes,
                        std::span<const std::pair<ggml_tensor*, ggml_tensor*>> seeds,
                        std::span<ggml_tensor* const> wanted);

/// An op (with its mode) that a gradient would have to flow through but for which there is no rule.
struct Unsupported {
    std::string op;
    std::string detail;
    int count = 0;
};

/// Every unsupported op among `nodes` (topological order) through which a gradient to a wanted
/// value would have to flow. `is_wanted` says which tensors (leaves or nodes) want a gradient.
/// Empty result: backward() will succeed. `nodes` should hold only ancestors of the outputs.
std::vector<Unsupported> audit(std::span<const ggml_tensor* const> nodes,
                               const std::function<bool(const ggml_tensor*)>& is_wanted);

}  // namespace voodoo::autodiff
