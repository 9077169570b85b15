// The backward walk and the audit.
#include <map>
#include <unordered_set>

#include "autodiff/rules/rules.h"
#include "base/error.h"

namespace voodoo::autodiff {

namespace {

bool carries_gradient(const ggml_tensor* t) {
    return t->type != GGML_TYPE_I8 && t->type != GGML_TYPE_I16 && t->type != GGML_TYPE_I32 &&
           t->type != GGML_TYPE_I64;
}

/// Whether the op's result depends on the values of src[i]: CPY overwrites its destination, and a
/// cast names itself.
bool reads_values_of(const ggml_tensor* node, int i) {
    return node->src[i] != nullptr && node->src[i] != node && !(node->op == GGML_OP_CPY && i == 1);
}

using RuleLookup = std::function<const Rule*(const ggml_tensor*)>;

/// Which values depend on a wanted one through ops that pass gradients (or have no rule: those must
/// be reported).
class Dependence {
public:
    Dependence(RuleLookup lookup, std::function<bool(const ggml_tensor*)> is_wanted)
        : lookup_(std::move(lookup)), is_wanted_(std::move(is_wanted)) {}

    /// Call in topological order.
    void visit(const ggml_tensor* node) {
        const Rule* rule = lookup_(node);
        if (!carries_gradient(node) || (rule != nullptr && rule->stops_gradient())) {
            return;
        }
        for (int i = 0; i < GGML_MAX_SRC; ++i) {
            if (reads_values_of(node, i) && contains(node->src[i])) {
                through_.insert(node);
                return;
            }
        }
    }

    /// A gradient of `t` is of use: it is wanted itself or leads on to a wanted value.
    bool contains(const ggml_tensor* t) const {
        return carries_gradient(t) && (leads_on(t) || is_wanted_(t));
    }
    bool leads_on(const ggml_tensor* t) const { return through_.count(t) != 0; }

    Needs needs_of(const ggml_tensor* node) const {
        Needs needs{};
        for (int i = 0; i < GGML_MAX_SRC; ++i) {
            needs[i] = reads_values_of(node, i) && contains(node->src[i]);
        }
        return needs;
    }

    const Rule* rule(const ggml_tensor* node) const { return lookup_(node); }

    /// Why the node can't be differentiated; empty if it can.
    std::string problem(const ggml_tensor* node) const {
        const Rule* found = rule(node);
        return found == nullptr ? "no rule" : refusal(*found, node, needs_of(node));
    }

private:
    RuleLookup lookup_;
    std::function<bool(const ggml_tensor*)> is_wanted_;
    std::unordered_set<const ggml_tensor*> through_;
};

class UnsupportedList {
public:
    void add(const ggml_tensor* node, const std::string& detail) {
        ++counts_[{ggml_op_desc(node), detail}];
    }

    std::vector<Unsupported> list() const {
        std::vector<Unsupported> out;
        for (const auto& [key, count] : counts_) {
            out.push_back({key.first, key.second, count});
        }
        return out;
    }

private:
    std::map<std::pair<std::string, std::string>, int> counts_;
};

/// Contributions to one value's gradient that are not summed yet.
struct Pending {
    std::vector<ggml_tensor*> whole;
    std::vector<rules::ViewGrad> windows;
};

class Walk {
public:
    Walk(Tape& tape, const Dependence& dependence) : tape_(tape), dependence_(dependence) {}

    void seed(ggml_tensor* output, ggml_tensor* cotangent) {
        check_gradient("seed", output, cotangent);
        pending_[output].whole.push_back(cotangent);
    }

    /// Call in reverse topological order.
    void visit(const ggml_tensor* node) {
        if (!dependence_.leads_on(node) || pending_.count(node) == 0) {
            return;
        }
        ggml_tensor* out_grad = total(node);
        const Rule* rule = dependence_.rule(node);
        if (rule->vjp == rules::view) {
            pending_[node->src[0]].windows.push_back({node, out_grad});
            return;
        }
        const Needs needs = dependence_.needs_of(node);
        const Grads grads = rule->vjp(tape_, node, out_grad, needs);
        for (int i = 0; i < GGML_MAX_SRC; ++i) {
            if (!needs[i]) {
                continue;
            }
            VOODOO_CHECK(grads[i] != nullptr, "[{}::vjp] no gradient for src[{}]", rule->name, i);
            check_gradient(rule->name, node->src[i], grads[i]);
            pending_[node->src[i]].whole.push_back(with_plain_strides(grads[i]));
        }
    }

    /// Sum of all contributions to `value` so far, or nullptr; further calls give the same tensor.
    ggml_tensor* total(const ggml_tensor* value) {
        const auto found = pending_.find(value);
        if (found == pending_.end()) {
            return nullptr;
        }
        Pending& parts = found->second;
        ggml_tensor* sum = nullptr;
        for (ggml_tensor* part : parts.whole) {
            sum = sum == nullptr ? part : ggml_add(tape_.context(), sum, part);
        }
        if (!parts.windows.empty()) {
            sum = rules::gather_windows(tape_, value, parts.windows, sum);
        }
        parts = {{sum}, {}};
        return sum;
    }

private:
    static void check_gradient(const char* who, const ggml_tensor* value, const ggml_tensor* grad) {
        VOODOO_CHECK(grad->type == GGML_TYPE_F32 && ggml_is_contiguous(grad) &&
                         ggml_are_same_shape(grad, value),
                     "[{}::vjp] gradient [{}, {}, {}, {}] of '{}' [{}, {}, {}, {}] is not its "
                     "shape in contiguous F32",
                     who, grad->ne[0], grad->ne[1], grad->ne[2], grad->ne[3], value->name,
                     value->ne[0], value->ne[1], value->ne[2], value->ne[3]);
    }

    /// A dimension of size 1 may have any stride in a contiguous tensor, but not every op of ggml
    /// takes such a tensor.
    ggml_tensor* with_plain_strides(ggml_tensor* grad) {
        size_t stride = ggml_type_size(grad->type);
        for (int d = 0; d < GGML_MAX_DIMS; ++d) {
            if (grad->nb[d] != stride) {
                return ggml_reshape_4d(tape_.context(), grad, grad->ne[0], grad->ne[1], grad->ne[2],
                                       grad->ne[3]);
            }
            stride *= static_cast<size_t>(grad->ne[d]);
        }
        return grad;
    }

    Tape& tape_;
    const Dependence& dependence_;
    std::unordered_map<const ggml_tensor*, Pending> pending_;
};

/// The ops without a rule that a gradient of the outputs has to pass: not, say, the scores behind a
/// selection of rows. `nodes` in topological order.
template <typename IsOutput>
std::vector<Unsupported> unsupported_ops(const Dependence& dependence,
                                         std::span<const ggml_tensor* const> nodes,
                                         const IsOutput& is_output) {
    std::unordered_set<const ggml_tensor*> reached;
    UnsupportedList problems;
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
        if (!dependence.leads_on(*it) || !(is_output(*it) || reached.count(*it) != 0)) continue;
        const std::string problem = dependence.problem(*it);
        if (!problem.empty()) problems.add(*it, problem);
        const Needs needs = dependence.needs_of(*it);
        for (int i = 0; i < GGML_MAX_SRC; ++i)
            if (needs[i]) reached.insert((*it)->src[i]);
    }
    return problems.list();
}

/// Throws if a gradient of the seeds would have to pass a node without a rule.
void require_rules(const Dependence& dependence, std::span<ggml_tensor* const> forward_nodes,
                   std::span<const std::pair<ggml_tensor*, ggml_tensor*>> seeds) {
    std::unordered_set<const ggml_tensor*> outputs;
    for (const auto& [output, cotangent] : seeds) outputs.insert(output);
    const std::vector<const ggml_tensor*> nodes(forward_nodes.begin(), forward_nodes.end());
    const std::vector<Unsupported> list = unsupported_ops(
        dependence, nodes, [&](const ggml_tensor* node) { return outputs.count(node) != 0; });
    if (list.empty()) {
        return;
    }
    std::string message = "ops that can't be differentiated:";
    for (const Unsupported& u : list) {
        message += fmt::format(" {} x{} ({});", u.op, u.count, u.detail);
    }
    message.pop_back();
    throw Error(ErrorKind::unsupported_op, message, "autodiff::backward");
}

}  // namespace

ggml_tensor* BackwardResult::find(const ggml_tensor* value) const {
    const auto found = grads.find(value);
    return found == grads.end() ? nullptr : found->second;
}

BackwardResult backward(Tape& tape, std::span<ggml_tensor* const> forward_nodes,
                        std::span<const std::pair<ggml_tensor*, ggml_tensor*>> seeds,
                        std::span<ggml_tensor* const> wanted) {
    const std::unordered_set<const ggml_tensor*> wanted_set(wanted.begin(), wanted.end());
    const RuleLookup lookup =
        tape.hooks().rule_override ? tape.hooks().rule_override : RuleLookup(find_rule);
    Dependence dependence(lookup, [&](const ggml_tensor* t) { return wanted_set.count(t) != 0; });
    for (const ggml_tensor* node : forward_nodes) {
        dependence.visit(node);
    }
    require_rules(dependence, forward_nodes, seeds);

    Walk walk(tape, dependence);
    for (const auto& [output, cotangent] : seeds) {
        walk.seed(output, cotangent);
    }
    for (auto it = forward_nodes.rbegin(); it != forward_nodes.rend(); ++it) {
        walk.visit(*it);
    }
    BackwardResult result;
    for (const ggml_tensor* value : wanted) {
        if (ggml_tensor* grad = walk.total(value)) {
            result.grads[value] = grad;
        }
    }
    return result;
}

std::vector<Unsupported> audit(std::span<const ggml_tensor* const> nodes,
                               const std::function<bool(const ggml_tensor*)>& is_wanted) {
    Dependence dependence(find_rule, is_wanted);
    std::unordered_set<const ggml_tensor*> used;
    for (const ggml_tensor* node : nodes) {
        dependence.visit(node);
        for (int i = 0; i < GGML_MAX_SRC; ++i) {
            if (reads_values_of(node, i)) {
                used.insert(node->src[i]);
            }
        }
    }
    return unsupported_ops(dependence, nodes,
                           [&](const ggml_tensor* node) { return used.count(node) == 0; });
}

}  // namespace voodoo::autodiff
