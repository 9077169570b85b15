// The trainable part of the method: one gate per tensor and candidate type, softmax with an
// annealed temperature, a penalty on the expected file size, Adam. Pure mathematics: the engine
// supplies c_tk = <dL/dW_t, W_tk>, this file does the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace voodoo::search {

enum class Schedule { constant, linear, exponential };

/// All hyper-parameters of the gates.
struct GateOptions {
    double lambda_kl = 1.0;  ///< weight of KL(teacher || student), nats per token
    double ce_weight = 1.0;  ///< weight of the cross-entropy, nats per token

    int64_t n_steps = 100;   ///< optimizer steps of the whole run (one epoch); schedules end there
    double tau_start = 1.0;  ///< softmax temperature of the first step, in units of a gate
    double tau_end = 0.1;    ///< and of the last step
    Schedule tau_schedule = Schedule::exponential;

    double lr = 0.1;             ///< Adam's step, in units of a gate
    double lr_end_ratio = 0.1;   ///< lr at the end of the cosine / lr
    double warmup_share = 0.05;  ///< share of n_steps in which lr rises linearly from 0
    double beta1 = 0.9;          ///< decay of the gradient's mean, per step
    double beta2 = 0.99;         ///< decay of the gradient's second moment, per step
    double epsilon = 1e-8;  ///< added to the root of the second moment, nats per unit of a gate

    double penalty_weight = 100.0;  ///< nats per squared relative size error beyond the dead zone
    double dead_zone = 0.01;        ///< relative size error that costs nothing

    double score_decay = 0.95;  ///< decay of the accumulated first-order scores, per step
    /// Gates are kept within logit_range * tau_end of the tensor's largest, so that no probability
    /// is ever zero and every type keeps receiving gradient (e^-300 = 5e-131). At most 600.
    double logit_range = 300.0;
};

/// Throws Error(usage) naming every option that is out of range.
void validate(const GateOptions& options);

/// A tensor and its candidates.
struct GateTensor {
    std::string name;
    std::vector<std::string> types;
    std::vector<double> bytes;  ///< size of the tensor in the file under each type
    /// Predicted loss of each type alone (second-order costs, nats per token), or empty. A mixture
    /// looks better than its types, because independent errors average out; with costs the loss
    /// counts the rounding to one type too:  lambda_kl * sum_k p_k (1 - p_k) cost_k.
    std::vector<double> cost{};
};

/// The engine's loss of one step, nats per token.
struct LossParts {
    double ce = 0.0;
    double kl = 0.0;
};

/// One row of the history.
struct GateRecord {
    int64_t step = 0;
    LossParts loss;
    double penalty = 0.0;         ///< nats
    double total = 0.0;           ///< ce_weight * ce + lambda_kl * (kl + rounding) + penalty
    double rounding = 0.0;        ///< predicted loss of rounding to one type, nats; 0 without costs
    double expected_bytes = 0.0;  ///< whole file, before the update
    double entropy = 0.0;         ///< mean over tensors of H(p), nats
    double tau = 0.0;
    double lr = 0.0;
    double grad_norm = 0.0;  ///< L2 over all gates, penalty included; NaN if not applied
    bool applied = true;     ///< false: something was not finite, gates and moments were left alone
};

/// What step() did.
struct GateStepResult {
    GateRecord record;
    std::vector<std::string> non_finite;  ///< "loss" or "tensor:type" (at most 16 of them)
    bool applied() const { return record.applied; }
};

/// Penalty on the expected size, u = E / target - 1:  weight * max(0, |u| - dead_zone)^2,
/// gradient by E: 2 weight (|u| - dead_zone) sign(u) / target outside of the dead zone, else 0.
struct Penalty {
    double value = 0.0;
    double grad_bytes = 0.0;  ///< d value / d expected_bytes
};
Penalty size_penalty(double expected_bytes, double target_bytes, double weight, double dead_zone);

/// softmax(g / tau), numerically safe.
std::vector<double> softmax(std::span<const double> gates, double tau);

/// Which numbers are handed to the knapsack as predicted loss; lower is better in all of them.
enum class GateScore {
    gates,        ///< -g
    log_prob,     ///< -log softmax(g / tau_end): -g / tau_end up to a constant of the tensor, so
                  ///< tensors compare as with `gates`
    first_order,  ///< decayed mean of c_k - sum_j p_j c_j: the loss change, to first order, of
                  ///< moving to type k; nats per token
    first_order_weighted,  ///< decayed mean of p_k (c_k - sum_j p_j c_j): the same seen by the
                           ///< gates
};

/// Gates of a model with their optimizer state. Not thread-safe.
///
/// Gradient: dL/dg_tj = p_tj (c_tj - sum_k p_tk c_tk) / tau
///                    + lambda_kl p_tj (r_tj - sum_k p_tk r_tk) / tau, r_tk = cost_tk (1 - 2 p_tk),
///                    + dPenalty/dE p_tj (bytes_tj - sum_k p_tk bytes_tk) / tau,
/// with E = fixed_bytes + sum_t sum_k p_tk bytes_tk.
class Gates {
public:
    /// Uniform gates. Throws Error(usage) for ill-formed tensors or options.
    Gates(std::vector<GateTensor> tensors, double fixed_bytes, double target_bytes,
          GateOptions options);

    /// All gates 0.
    void init_uniform();
    /// g_tk = -slope * bytes_tk / mean_k bytes_tk with the slope at which the expected size at
    /// tau_start is the target (clamped to what the gate range allows).
    void init_at_target();
    /// g_tk = -scale (cost_tk + price bytes_tk): the price at which the expected size at tau_start
    /// is the target, the scale at which the mean entropy there is `entropy` nats. Throws
    /// Error(usage) without costs.
    void init_at_costs(double entropy);
    /// g_tk = -scale * (score_tk - min_k score_tk), e.g. second-order scores; lower score = better.
    void init_from_scores(std::span<const std::vector<double>> scores, double scale);

    const std::vector<GateTensor>& tensors() const { return tensors_; }
    const GateOptions& options() const { return options_; }
    double target_bytes() const { return target_bytes_; }
    double fixed_bytes() const { return fixed_bytes_; }
    int64_t step_index() const { return step_; }
    bool finished() const { return step_ >= options_.n_steps; }
    /// Temperature and learning rate of a step; past the end the last step's.
    double tau_at(int64_t step) const;
    double lr_at(int64_t step) const;
    double tau() const { return tau_at(step_); }

    std::span<const double> gates(size_t tensor) const { return gates_[tensor]; }
    /// Mixing weights of the coming step, all > 0.
    std::vector<double> probabilities(size_t tensor) const {
        return softmax(gates_[tensor], tau());
    }
    double expected_bytes() const;
    /// sum over tensors of p (1 - p) cost, nats per token.
    double rounding() const;
    /// Mean over tensors, nats.
    double entropy() const;
    /// Index of the largest gate (first of equals).
    size_t argmax(size_t tensor) const;

    /// Gradient of ce_weight CE + lambda KL + penalty with respect to the gates at the current tau.
    std::vector<std::vector<double>> gradient(
        std::span<const std::vector<double>> contractions) const;

    /// One optimizer step. contractions[t][k] = <d(ce_weight CE + lambda_kl KL)/dW_t, W_tk>, at
    /// probabilities(). Where the loss or a contraction is not finite nothing is applied, the step
    /// is recorded as such and the schedules move on. Throws Error(internal) on wrong shapes.
    GateStepResult step(std::span<const std::vector<double>> contractions, const LossParts& loss);

    const std::vector<GateRecord>& history() const { return history_; }

    /// Values for the knapsack, per tensor and type. first_order* are 0 before the first step.
    std::vector<std::vector<double>> scores(GateScore kind) const;

    /// JSON with every bit of the state; a run resumed from it continues bit-identically.
    std::string serialize() const;
    /// Throws Error(bad_file).
    static Gates deserialize(std::string_view text);

private:
    void tilt(double scale, double price);
    void clamp_gates(std::vector<double>& gates) const;
    void reset_moments();
    void accumulate_scores(std::span<const std::vector<double>> contractions);
    void adam(const std::vector<std::vector<double>>& gradient, double lr);

    std::vector<GateTensor> tensors_;
    double fixed_bytes_ = 0.0;
    double target_bytes_ = 0.0;
    GateOptions options_;
    int64_t step_ = 0;       // steps taken, those not applied included
    int64_t n_applied_ = 0;  // Adam's t
    std::vector<std::vector<double>> gates_, mean_, second_, score_, score_weighted_;
    double score_weight_ = 0.0;  // sum of the decayed weights
    std::vector<GateRecord> history_;
};

}  // namespace voodoo::search
