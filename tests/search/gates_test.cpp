// The gates' mathematics against numeric differences, and the whole method on a toy whose best
// layout is known.
#include "search/gates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "expect_error.h"
#include "search/budget.h"

namespace voodoo::search {
namespace {

/// A toy whose loss is an explicit function of the mixture: weights w_t = sum_k p_tk q_tk,
/// loss = sum_t s_t |w_t - x_t|^2 / 2, so <dW_t, W_tk> = s_t (w_t - x_t) . q_tk.
struct Toy {
    std::vector<GateTensor> tensors;
    std::vector<double> sensitivity;
    std::vector<std::vector<double>> source;                   // [tensor][element]
    std::vector<std::vector<std::vector<double>>> candidates;  // [tensor][type][element]

    Toy(size_t n_tensors, size_t n_types, uint64_t seed) {
        Random random(seed, "toy");
        constexpr size_t kElements = 64;
        for (size_t t = 0; t < n_tensors; ++t) {
            GateTensor tensor{fmt::format("blk.{}.weight", t), {}, {}};
            sensitivity.push_back(std::exp(random.normal()));
            auto& x = source.emplace_back();
            for (size_t i = 0; i < kElements; ++i) {
                x.push_back(random.normal());
            }
            // One direction of error for all types, so that a mixture is no better than its parts
            // (independent errors would average out, and the best mixture would not be one type).
            std::vector<double> error;
            for (size_t i = 0; i < kElements; ++i) {
                error.push_back(0.5 * random.normal());
            }
            auto& types = candidates.emplace_back();
            const double size = 1000.0 * static_cast<double>(1 + random.below(4));
            for (size_t k = 0; k < n_types; ++k) {
                tensor.types.push_back(fmt::format("Q{}", k + 1));
                tensor.bytes.push_back(size * static_cast<double>(k + 1));
                const double step = std::exp2(-static_cast<double>(k));
                auto& q = types.emplace_back();
                for (size_t i = 0; i < kElements; ++i) {
                    q.push_back(x[i] + step * error[i]);
                }
            }
            tensors.push_back(std::move(tensor));
        }
    }

    std::vector<double> mix(size_t t, const std::vector<double>& p) const {
        std::vector<double> w(source[t].size(), 0.0);
        for (size_t k = 0; k < p.size(); ++k) {
            for (size_t i = 0; i < w.size(); ++i) {
                w[i] += p[k] * candidates[t][k][i];
            }
        }
        return w;
    }

    double tensor_loss(size_t t, const std::vector<double>& p) const {
        const std::vector<double> w = mix(t, p);
        double loss = 0.0;
        for (size_t i = 0; i < w.size(); ++i) {
            loss += 0.5 * sensitivity[t] * (w[i] - source[t][i]) * (w[i] - source[t][i]);
        }
        return loss / static_cast<double>(w.size());
    }

    double loss(const Gates& gates) const {
        double sum = 0.0;
        for (size_t t = 0; t < tensors.size(); ++t) {
            sum += tensor_loss(t, gates.probabilities(t));
        }
        return sum;
    }

    std::vector<std::vector<double>> contractions(const Gates& gates) const {
        std::vector<std::vector<double>> out;
        for (size_t t = 0; t < tensors.size(); ++t) {
            const std::vector<double> w = mix(t, gates.probabilities(t));
            auto& row = out.emplace_back();
            for (const std::vector<double>& q : candidates[t]) {
                double c = 0.0;
                for (size_t i = 0; i < w.size(); ++i) {
                    c += sensitivity[t] * (w[i] - source[t][i]) * q[i];
                }
                row.push_back(c / static_cast<double>(w.size()));
            }
        }
        return out;
    }

    /// The knapsack whose values are the true losses of each single type.
    BudgetProblem true_problem() const {
        BudgetProblem problem;
        for (size_t t = 0; t < tensors.size(); ++t) {
            BudgetGroup& group = problem.groups.emplace_back();
            group.name = tensors[t].name;
            for (size_t k = 0; k < tensors[t].types.size(); ++k) {
                std::vector<double> one_hot(tensors[t].types.size(), 0.0);
                one_hot[k] = 1.0;
                group.items.push_back({static_cast<uint64_t>(tensors[t].bytes[k]),
                                       tensor_loss(t, one_hot), tensors[t].types[k]});
            }
        }
        return problem;
    }
};

Gates random_gates(const Toy& toy, double target, GateOptions options, uint64_t seed) {
    Gates gates(toy.tensors, 500.0, target, options);
    Random random(seed, "gates");
    std::vector<std::vector<double>> scores;
    for (const GateTensor& tensor : toy.tensors) {
        auto& row = scores.emplace_back();
        for (size_t k = 0; k < tensor.types.size(); ++k) {
            row.push_back(random.normal());
        }
    }
    gates.init_from_scores(scores, 1.0);
    return gates;
}

TEST(SizePenalty, MatchesItsFormulaAndItsNumericGradient) {
    const double target = 1000.0, weight = 100.0, zone = 0.01;
    EXPECT_EQ(size_penalty(1000.0, target, weight, zone).value, 0.0);
    EXPECT_EQ(size_penalty(1009.9, target, weight, zone).grad_bytes, 0.0);
    EXPECT_EQ(size_penalty(990.1, target, weight, zone).value, 0.0);
    EXPECT_NEAR(size_penalty(1060.0, target, weight, zone).value, 100.0 * 0.05 * 0.05, 1e-12);
    EXPECT_NEAR(size_penalty(940.0, target, weight, zone).value, 100.0 * 0.05 * 0.05, 1e-12);
    for (const double bytes : {500.0, 980.0, 989.0, 1011.0, 1020.0, 2000.0}) {
        const double h = 1e-3;
        const double numeric = (size_penalty(bytes + h, target, weight, zone).value -
                                size_penalty(bytes - h, target, weight, zone).value) /
                               (2.0 * h);
        EXPECT_NEAR(size_penalty(bytes, target, weight, zone).grad_bytes, numeric,
                    1e-8 * std::abs(numeric) + 1e-9)
            << bytes;
    }
    EXPECT_GT(size_penalty(1020.0, target, weight, zone).grad_bytes, 0.0);
    EXPECT_LT(size_penalty(980.0, target, weight, zone).grad_bytes, 0.0);
}

TEST(Gates, GradientMatchesNumericDifferencesOfLossPlusPenalty) {
    Toy toy(5, 4, 1);
    for (const double tau : {1.0, 0.3, 0.5}) {
        // The last round counts the rounding to one type too.
        for (GateTensor& tensor : toy.tensors) {
            if (tau == 0.5) tensor.cost = {0.9, 0.05, 0.3, 0.0};
        }
        for (const double target : {4'000.0, 25'000.0, 90'000.0}) {
            GateOptions options;
            options.tau_start = options.tau_end = tau;
            options.penalty_weight = 3.0;
            options.lambda_kl = tau == 0.5 ? 1.0 : 0.7;
            Gates gates = random_gates(toy, target, options, 2);
            const auto gradient = gates.gradient(toy.contractions(gates));
            const auto objective = [&](const Gates& at) {
                return toy.loss(at) + options.lambda_kl * at.rounding() +
                       size_penalty(at.expected_bytes(), target, 3.0, options.dead_zone).value;
            };
            double error = 0.0, norm = 0.0;
            for (size_t t = 0; t < toy.tensors.size(); ++t) {
                for (size_t k = 0; k < toy.tensors[t].types.size(); ++k) {
                    const double h = 1e-5;
                    double side[2];
                    for (int s = 0; s < 2; ++s) {
                        std::vector<std::vector<double>> shifted;
                        for (size_t u = 0; u < toy.tensors.size(); ++u) {
                            shifted.emplace_back();
                            for (const double g : gates.gates(u)) {
                                shifted.back().push_back(-g);
                            }
                        }
                        shifted[t][k] -= s == 0 ? h : -h;
                        Gates moved(toy.tensors, 500.0, target, options);
                        moved.init_from_scores(shifted, 1.0);
                        side[s] = objective(moved);
                    }
                    const double numeric = (side[0] - side[1]) / (2.0 * h);
                    error += (numeric - gradient[t][k]) * (numeric - gradient[t][k]);
                    norm += numeric * numeric;
                }
            }
            ASSERT_GT(norm, 1e-8) << "a vanishing gradient would prove nothing";
            // Central differences: h^2 truncation, plus rounding of the objective over h.
            EXPECT_LT(std::sqrt(error / norm), 1e-6) << "tau " << tau << " target " << target;
        }
    }
}

TEST(Gates, LearnALayoutWithinThreePercentOfTheKnapsackOptimum) {
    int n_exact = 0;
    for (const uint64_t seed : {1, 2, 3}) {
        const Toy toy(24, 5, seed);
        const BudgetSolver truth(toy.true_problem());
        const uint64_t budget = (truth.attainable().min * 5 + truth.attainable().max * 3) / 8;
        const BudgetSolution best = truth.solve(budget);
        ASSERT_EQ(best.gap, 0.0);

        GateOptions options;
        options.n_steps = 600;
        options.lr = 0.05;
        Gates gates(toy.tensors, 0.0, static_cast<double>(budget), options);
        gates.init_at_target();
        EXPECT_NEAR(gates.expected_bytes() / static_cast<double>(budget), 1.0, 1e-6);
        while (!gates.finished()) {
            ASSERT_TRUE(gates.step(toy.contractions(gates), {0.0, toy.loss(gates)}).applied());
        }
        EXPECT_LT(std::abs(gates.expected_bytes() / static_cast<double>(budget) - 1.0), 0.05);
        EXPECT_LT(gates.history().back().entropy, 0.5 * gates.history().front().entropy);

        // Project with the learned gates as values, then judge by the true losses.
        BudgetProblem learned = toy.true_problem();
        const auto values = gates.scores(GateScore::gates);
        for (size_t t = 0; t < learned.groups.size(); ++t) {
            for (size_t k = 0; k < values[t].size(); ++k) {
                learned.groups[t].items[k].value = values[t][k];
            }
        }
        const BudgetSolution found = solve_budget(learned, budget);
        double found_loss = 0.0, uniform_loss = 0.0;
        for (size_t t = 0; t < found.choice.size(); ++t) {
            found_loss += truth.problem().groups[t].items[found.choice[t]].value;
            uniform_loss += truth.problem().groups[t].items[1].value;
        }
        EXPECT_LE(found_loss, best.total_value * 1.03)
            << "seed " << seed << " best " << best.total_value << " uniform " << uniform_loss;
        EXPECT_LT(best.total_value, 0.7 * uniform_loss)
            << "a toy on which any layout does proves nothing";
        n_exact += found.choice == best.choice;
    }
    EXPECT_GE(n_exact, 1);
}

TEST(Gates, EveryTypeKeepsReceivingGradient) {
    const Toy toy(3, 4, 5);
    GateOptions options;
    options.n_steps = 50;
    options.lr = 1e6;  // drives the gates to the ends of their range
    options.warmup_share = 0.0;
    Gates gates(toy.tensors, 0.0, 10'000.0, options);
    while (!gates.finished()) {
        gates.step(toy.contractions(gates), {});
        const auto gradient = gates.gradient(toy.contractions(gates));
        for (size_t t = 0; t < toy.tensors.size(); ++t) {
            double sum = 0.0;
            for (size_t k = 0; k < gates.gates(t).size(); ++k) {
                ASSERT_GT(gates.probabilities(t)[k], 0.0);
                ASSERT_NE(gradient[t][k], 0.0) << "tensor " << t << " type " << k;
                sum += gates.probabilities(t)[k];
            }
            ASSERT_NEAR(sum, 1.0, 1e-12);
        }
        ASSERT_TRUE(std::isfinite(gates.entropy()));
    }
}

TEST(Gates, SchedulesRunFromStartToEnd) {
    GateOptions options;
    options.n_steps = 101;
    options.tau_start = 2.0;
    options.tau_end = 0.02;
    options.warmup_share = 0.1;
    const std::vector<GateTensor> one = {{"t", {"a", "b"}, {1.0, 2.0}}};
    const Gates exponential(one, 0.0, 1.5, options);
    EXPECT_DOUBLE_EQ(exponential.tau_at(0), 2.0);
    EXPECT_NEAR(exponential.tau_at(50), 0.2, 1e-12);
    EXPECT_NEAR(exponential.tau_at(100), 0.02, 1e-12);
    EXPECT_NEAR(exponential.tau_at(1000), 0.02, 1e-12);
    EXPECT_GT(exponential.lr_at(0), 0.0);
    EXPECT_LT(exponential.lr_at(0), exponential.lr_at(9));
    EXPECT_DOUBLE_EQ(exponential.lr_at(10), options.lr);
    EXPECT_GT(exponential.lr_at(50), exponential.lr_at(51));
    EXPECT_NEAR(exponential.lr_at(100), options.lr * options.lr_end_ratio, 1e-12);
    options.tau_schedule = Schedule::linear;
    EXPECT_NEAR(Gates(one, 0.0, 1.5, options).tau_at(50), 1.01, 1e-12);
    options.tau_schedule = Schedule::constant;
    EXPECT_EQ(Gates(one, 0.0, 1.5, options).tau_at(100), 2.0);
    options.n_steps = 1;
    EXPECT_EQ(Gates(one, 0.0, 1.5, options).lr_at(0), options.lr);
}

TEST(Gates, StepIsAdamOnTheGradient) {
    GateOptions options;
    options.n_steps = 10;
    options.warmup_share = 0.0;
    options.lr_end_ratio = 1.0;
    options.tau_schedule = Schedule::constant;
    options.penalty_weight = 0.0;
    Gates gates({{"t", {"a", "b"}, {1.0, 2.0}}}, 0.0, 1.5, options);
    double m = 0.0, v = 0.0, g0 = 0.0;
    for (int s = 1; s <= 4; ++s) {
        const std::vector<std::vector<double>> c = {{0.3 * s, -0.1}};
        const double p = gates.probabilities(0)[0];
        const double grad = p * (c[0][0] - (p * c[0][0] + (1.0 - p) * c[0][1])) / 1.0;
        m = 0.9 * m + 0.1 * grad;
        v = 0.99 * v + 0.01 * grad * grad;
        g0 -= 0.1 * (m / (1.0 - std::pow(0.9, s))) /
              (std::sqrt(v / (1.0 - std::pow(0.99, s))) + 1e-8);
        gates.step(c, {});
        EXPECT_NEAR(gates.gates(0)[0], g0, 1e-14);
    }
    EXPECT_EQ(gates.argmax(0), 1u);  // the type with the lower contraction
}

TEST(Gates, DetectNonFiniteNumbersAndApplyNothing) {
    const Toy toy(3, 3, 6);
    Gates gates(toy.tensors, 0.0, 10'000.0, GateOptions{});
    gates.step(toy.contractions(gates), {1.0, 2.0});
    const std::vector<double> before(gates.gates(1).begin(), gates.gates(1).end());
    const auto scores = gates.scores(GateScore::first_order);
    const double bad[] = {std::nan(""), std::numeric_limits<double>::infinity()};
    for (const double x : bad) {
        auto contractions = toy.contractions(gates);
        contractions[1][2] = x;
        const GateStepResult result = gates.step(contractions, {1.0, 2.0});
        EXPECT_FALSE(result.applied());
        EXPECT_EQ(result.non_finite, (std::vector<std::string>{"blk.1.weight:Q3"}));
        const GateStepResult loss = gates.step(toy.contractions(gates), {1.0, x});
        EXPECT_EQ(loss.non_finite, (std::vector<std::string>{"loss"}));
        auto huge = toy.contractions(gates);
        huge[0][0] = 1e300;
        EXPECT_EQ(gates.step(huge, {}).non_finite, (std::vector<std::string>{"gradient norm"}));
    }
    EXPECT_EQ(std::vector<double>(gates.gates(1).begin(), gates.gates(1).end()), before);
    EXPECT_EQ(gates.scores(GateScore::first_order), scores);
    EXPECT_EQ(gates.step_index(), 7);
    EXPECT_FALSE(gates.history().back().applied);
    EXPECT_TRUE(gates.step(toy.contractions(gates), {1.0, 2.0}).applied());
}

TEST(Gates, RecordWhatEachStepSaw) {
    const Toy toy(4, 3, 7);
    GateOptions options;
    options.ce_weight = 0.5;
    options.lambda_kl = 4.0;
    Gates gates(toy.tensors, 100.0, 5'000.0, options);
    const double expected_bytes = gates.expected_bytes();
    const GateRecord record = gates.step(toy.contractions(gates), {3.0, 0.25}).record;
    EXPECT_EQ(record.step, 0);
    EXPECT_EQ(record.expected_bytes, expected_bytes);
    EXPECT_GT(record.penalty, 0.0);
    EXPECT_DOUBLE_EQ(record.total, 0.5 * 3.0 + 4.0 * 0.25 + record.penalty);
    EXPECT_NEAR(record.entropy, std::log(3.0), 1e-12);
    EXPECT_EQ(record.tau, options.tau_start);
    EXPECT_GT(record.grad_norm, 0.0);
    EXPECT_EQ(gates.history().size(), 1u);
}

TEST(Gates, ScoresOfAllKindsRankTheCheaperLossLower) {
    GateOptions options;
    options.penalty_weight = 0.0;
    options.n_steps = 20;
    Gates gates({{"t", {"bad", "good"}, {1.0, 2.0}}}, 0.0, 1.5, options);
    for (const GateScore kind : {GateScore::first_order, GateScore::first_order_weighted}) {
        EXPECT_EQ(gates.scores(kind)[0], (std::vector<double>{0.0, 0.0}));
    }
    while (!gates.finished()) {
        gates.step(std::vector<std::vector<double>>{{0.5, 0.2}}, {});
    }
    for (const GateScore kind : {GateScore::gates, GateScore::log_prob, GateScore::first_order,
                                 GateScore::first_order_weighted}) {
        const auto scores = gates.scores(kind);
        EXPECT_GT(scores[0][0], scores[0][1]) << static_cast<int>(kind);
    }
    const auto first_order = gates.scores(GateScore::first_order);
    EXPECT_NEAR(first_order[0][0] - first_order[0][1], 0.3, 1e-12);
    const auto log_prob = gates.scores(GateScore::log_prob), plain = gates.scores(GateScore::gates);
    EXPECT_NEAR(log_prob[0][0] - log_prob[0][1], (plain[0][0] - plain[0][1]) / options.tau_end,
                1e-9);
}

TEST(Gates, InitAtTargetMeetsReachableSizesAndGoesToTheEndsForOthers) {
    const Toy toy(6, 5, 8);
    double least = 500.0, most = 500.0;
    for (const GateTensor& tensor : toy.tensors) {
        least += tensor.bytes.front();
        most += tensor.bytes.back();
    }
    for (const double share : {0.1, 0.5, 0.9}) {
        const double target = least + share * (most - least);
        Gates gates(toy.tensors, 500.0, target, GateOptions{});
        gates.init_at_target();
        EXPECT_NEAR(gates.expected_bytes(), target, 1e-6 * target);
    }
    Gates small(toy.tensors, 500.0, 0.5 * least, GateOptions{});
    small.init_at_target();
    EXPECT_NEAR(small.expected_bytes(), least, 0.01 * least);
}

TEST(Gates, InitAtCostsPrefersWhatTheKnapsackWouldAtTheTargetSize) {
    Toy toy(8, 4, 9);
    double least = 500.0, most = 500.0;
    for (size_t t = 0; t < toy.tensors.size(); ++t) {
        least += toy.tensors[t].bytes.front();
        most += toy.tensors[t].bytes.back();
        for (size_t k = 0; k < 4; ++k) {
            std::vector<double> one_hot(4, 0.0);
            one_hot[k] = 1.0;
            toy.tensors[t].cost.push_back(toy.tensor_loss(t, one_hot));
        }
    }
    const double target = 0.5 * (least + most);
    for (const double entropy : {0.1, 0.6}) {
        Gates gates(toy.tensors, 500.0, target, GateOptions{});
        gates.init_at_costs(entropy);
        EXPECT_NEAR(gates.expected_bytes(), target, 1e-3 * target);
        EXPECT_NEAR(gates.entropy(), entropy, 0.05);
    }
    // Nearly decided gates choose on the convex hull, where a price per byte decides.
    Gates sharp(toy.tensors, 500.0, target, GateOptions{});
    sharp.init_at_costs(0.02);
    double loss = 0.0;
    for (size_t t = 0; t < toy.tensors.size(); ++t) loss += toy.tensors[t].cost[sharp.argmax(t)];
    BudgetProblem problem = toy.true_problem();
    const double best =
        solve_budget(problem, static_cast<uint64_t>(sharp.expected_bytes()) + 1000).total_value;
    EXPECT_LT(loss, 1.3 * best + 1e-9);
    EXPECT_ERROR(Gates({{"t", {"a"}, {1.0}}}, 0.0, 1.0, {}).init_at_costs(0.5), ErrorKind::usage);
}

TEST(Gates, RefuseBadInput) {
    const std::vector<GateTensor> good = {{"t", {"a", "b"}, {1.0, 2.0}}};
    EXPECT_ERROR(Gates({{"t", {"a", "b"}, {1.0}}}, 0.0, 1.0, {}), ErrorKind::usage);
    EXPECT_ERROR(Gates({{"t", {}, {}}}, 0.0, 1.0, {}), ErrorKind::usage);
    EXPECT_ERROR(Gates({{"t", {"a"}, {std::nan("")}}}, 0.0, 1.0, {}), ErrorKind::usage);
    EXPECT_ERROR(Gates(good, 0.0, 0.0, {}), ErrorKind::usage);
    EXPECT_ERROR(Gates(good, -1.0, 1.0, {}), ErrorKind::usage);
    GateOptions options;
    options.tau_end = 0.0;
    options.beta1 = 1.0;
    options.lambda_kl = std::nan("");
    try {
        validate(options);
        FAIL() << "three options are out of range";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        for (const char* name : {"tau_end", "beta1", "lambda_kl"}) {
            EXPECT_NE(error.message().find(name), std::string::npos) << error.message();
        }
    }
    Gates gates(good, 0.0, 1.0, {});
    EXPECT_ERROR(gates.init_from_scores(std::vector<std::vector<double>>{{1.0}}, 1.0),
                 ErrorKind::usage);
    EXPECT_ERROR(gates.init_from_scores(std::vector<std::vector<double>>{}, 1.0), ErrorKind::usage);
    EXPECT_ERROR(gates.step(std::vector<std::vector<double>>{{1.0}}, {}), ErrorKind::internal);
}

}  // namespace
}  // namespace voodoo::search
