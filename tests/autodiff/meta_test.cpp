// Faults are injected into each rule; the gradient checks of that rule must turn red.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "gradcheck/gradcheck.h"

namespace voodoo::gradcheck {
namespace {

enum class Fault { one_percent, negated, dropped, shuffled };

const char* name_of(Fault fault) {
    switch (fault) {
        case Fault::one_percent:
            return "x1.01";
        case Fault::negated:
            return "negated";
        case Fault::dropped:
            return "dropped";
        default:
            return "shuffled";
    }
}

/// The rule whose gradient of src[source] goes wrong, and whether that happened.
struct Injection {
    const autodiff::Rule* rule = nullptr;
    Fault fault = Fault::one_percent;
    int source = 0;
    bool applied = false;
};
Injection injection;  // VjpFn is a plain function pointer, so the fault travels in a global

ggml_tensor* broken(autodiff::Tape& tape, ggml_tensor* grad) {
    ggml_context* ctx = tape.context();
    switch (injection.fault) {
        case Fault::one_percent:
            return ggml_scale(ctx, grad, 1.01F);
        case Fault::negated:
            return ggml_neg(ctx, grad);
        case Fault::dropped:
            return ggml_scale(ctx, grad, 0.0F);
        default: {
            const int64_t n = ggml_nelements(grad);
            if (n == 1) {
                return nullptr;
            }
            ggml_tensor* rolled = ggml_roll(ctx, ggml_reshape_1d(ctx, grad, n), 1, 0, 0, 0);
            return ggml_reshape(ctx, rolled, grad);
        }
    }
}

autodiff::Grads faulty_vjp(autodiff::Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad,
                           const autodiff::Needs& needs) {
    autodiff::Grads grads = injection.rule->vjp(tape, node, out_grad, needs);
    ggml_tensor*& grad = grads[static_cast<size_t>(injection.source)];
    if (needs[static_cast<size_t>(injection.source)]) {
        if (ggml_tensor* wrong = broken(tape, grad)) {
            grad = wrong;
            injection.applied = true;
        }
    }
    return grads;
}

/// Mutants that are the rule itself.
const std::set<std::string> kEquivalent = {
    "SUM/0/shuffled",  // the gradient is the same number for every element
};

struct Prepared {
    const Case* c;
    Reference reference;
};

enum class Fate { not_applicable, survived, killed };

Fate fate_of(const autodiff::Rule& rule, Fault fault, int source,
             const std::vector<Prepared>& cases) {
    autodiff::Rule faulty = rule;
    faulty.vjp = faulty_vjp;
    injection = {&rule, fault, source, false};
    const auto lookup = [&](const ggml_tensor* node) -> const autodiff::Rule* {
        const autodiff::Rule* found = autodiff::find_rule(node);
        return found == &rule ? &faulty : found;
    };
    for (const Prepared& p : cases) {
        if (!check(*p.c, 1.0, p.reference, {}, lookup).pass && injection.applied) {
            return Fate::killed;
        }
    }
    return injection.applied ? Fate::survived : Fate::not_applicable;
}

TEST(FaultInjection, EveryFaultInEveryRuleTurnsItsGradientChecksRed) {
    std::map<std::string, std::vector<Prepared>> by_rule;
    for (const Case& c : all_cases()) {
        by_rule[c.rule].push_back({&c, numeric_reference(c, 1.0)});
    }
    int n_killed = 0;
    for (const autodiff::Rule& rule : autodiff::all_rules()) {
        if (rule.stops_gradient()) {
            continue;
        }
        int n_of_rule = 0;
        for (int source = 0; source < GGML_MAX_SRC; ++source) {
            for (const Fault fault :
                 {Fault::one_percent, Fault::negated, Fault::dropped, Fault::shuffled}) {
                const std::string mutant =
                    fmt::format("{}/{}/{}", rule.name, source, name_of(fault));
                const Fate fate = fate_of(rule, fault, source, by_rule[rule.name]);
                if (kEquivalent.count(mutant)) {
                    EXPECT_EQ(fate, Fate::survived)
                        << mutant << " is listed as equivalent but is not";
                    continue;
                }
                EXPECT_NE(fate, Fate::survived) << mutant << " is not noticed";
                if (fault == Fault::one_percent && fate == Fate::not_applicable) {
                    break;  // no such source, or none that gets a gradient
                }
                n_of_rule += fate == Fate::killed ? 1 : 0;
            }
        }
        EXPECT_GE(n_of_rule, 3) << rule.name << ": too few faults could be injected";
        n_killed += n_of_rule;
    }
    RecordProperty("killed", n_killed);
    EXPECT_GT(n_killed, 200);
}

}  // namespace
}  // namespace voodoo::gradcheck
