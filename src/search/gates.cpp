#include "search/gates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace voodoo::search {
namespace {

constexpr size_t kMaxReported = 16;

[[noreturn]] void usage(const std::string& message) {
    throw Error(ErrorKind::usage, message, "gates");
}

double dot(std::span<const double> a, std::span<const double> b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void validate_tensors(const std::vector<GateTensor>& tensors) {
    for (const GateTensor& tensor : tensors) {
        if (tensor.types.empty() || tensor.types.size() != tensor.bytes.size()) {
            usage(fmt::format("tensor {} has {} types and {} sizes", tensor.name,
                              tensor.types.size(), tensor.bytes.size()));
        }
        if (!tensor.cost.empty() && tensor.cost.size() != tensor.types.size()) {
            usage(fmt::format("tensor {} has {} types and {} costs", tensor.name,
                              tensor.types.size(), tensor.cost.size()));
        }
        for (const double cost : tensor.cost) {
            if (!std::isfinite(cost) || cost < 0.0) {
                usage(fmt::format("tensor {} has a cost that is negative or not finite",
                                  tensor.name));
            }
        }
        for (const double bytes : tensor.bytes) {
            if (!std::isfinite(bytes) || bytes < 0.0) {
                usage(fmt::format("tensor {} has a size that is negative or not finite",
                                  tensor.name));
            }
        }
    }
}

}  // namespace

void validate(const GateOptions& o) {
    std::string faults;
    const auto require = [&](bool good, const char* what) {
        if (!good) {
            faults += (faults.empty() ? "" : "; ") + std::string(what);
        }
    };
    const auto within = [](double x, double low, double high) { return x >= low && x <= high; };
    const double huge = 1e12;
    require(within(o.lambda_kl, 0.0, huge), "lambda_kl must be >= 0");
    require(within(o.ce_weight, 0.0, huge), "ce_weight must be >= 0");
    require(o.n_steps >= 1, "n_steps must be at least 1");
    require(within(o.tau_start, 1e-6, 1e6), "tau_start must be in [1e-6, 1e6]");
    require(within(o.tau_end, 1e-6, 1e6), "tau_end must be in [1e-6, 1e6]");
    require(o.tau_end <= o.tau_start, "tau_end must not exceed tau_start");
    require(within(o.lr, 0.0, huge), "lr must be >= 0");
    require(within(o.lr_end_ratio, 0.0, 1.0), "lr_end_ratio must be in [0, 1]");
    require(within(o.warmup_share, 0.0, 1.0), "warmup_share must be in [0, 1]");
    require(o.beta1 >= 0.0 && o.beta1 < 1.0, "beta1 must be in [0, 1)");
    require(o.beta2 >= 0.0 && o.beta2 < 1.0, "beta2 must be in [0, 1)");
    require(o.epsilon > 0.0 && o.epsilon < huge, "epsilon must be > 0");
    require(within(o.penalty_weight, 0.0, huge), "penalty_weight must be >= 0");
    require(within(o.dead_zone, 0.0, 1.0), "dead_zone must be in [0, 1]");
    require(o.score_decay > 0.0 && o.score_decay <= 1.0, "score_decay must be in (0, 1]");
    require(within(o.logit_range, 1.0, 600.0), "logit_range must be in [1, 600]");
    if (!faults.empty()) {
        usage(faults);
    }
}

Penalty size_penalty(double expected_bytes, double target_bytes, double weight, double dead_zone) {
    const double relative = expected_bytes / target_bytes - 1.0;
    const double excess = std::abs(relative) - dead_zone;
    if (excess <= 0.0) {
        return {};
    }
    return {weight * excess * excess,
            2.0 * weight * excess * (relative > 0.0 ? 1.0 : -1.0) / target_bytes};
}

std::vector<double> softmax(std::span<const double> gates, double tau) {
    const double largest = *std::max_element(gates.begin(), gates.end());
    std::vector<double> p(gates.size());
    double sum = 0.0;
    for (size_t k = 0; k < p.size(); ++k) {
        p[k] = std::exp((gates[k] - largest) / tau);
        sum += p[k];
    }
    for (double& x : p) {
        x /= sum;
    }
    return p;
}

Gates::Gates(std::vector<GateTensor> tensors, double fixed_bytes, double target_bytes,
             GateOptions options)
    : tensors_(std::move(tensors)),
      fixed_bytes_(fixed_bytes),
      target_bytes_(target_bytes),
      options_(options) {
    validate(options_);
    validate_tensors(tensors_);
    if (!std::isfinite(target_bytes) || target_bytes <= 0.0 || !std::isfinite(fixed_bytes) ||
        fixed_bytes < 0.0) {
        usage("the target size must be positive and the fixed size not negative");
    }
    init_uniform();
}

void Gates::init_uniform() {
    gates_.clear();
    for (const GateTensor& tensor : tensors_) {
        gates_.emplace_back(tensor.types.size(), 0.0);
    }
    reset_moments();
}

void Gates::reset_moments() {
    std::vector<std::vector<double>> zeros;
    for (const GateTensor& tensor : tensors_) {
        zeros.emplace_back(tensor.types.size(), 0.0);
    }
    mean_ = second_ = score_ = score_weighted_ = zeros;
    score_weight_ = 0.0;
    step_ = n_applied_ = 0;
    history_.clear();
}

void Gates::init_at_target() {
    const auto tilt = [&](double slope) {
        double expected = fixed_bytes_;
        for (size_t t = 0; t < tensors_.size(); ++t) {
            const std::vector<double>& bytes = tensors_[t].bytes;
            const double mean = std::accumulate(bytes.begin(), bytes.end(), 0.0) /
                                static_cast<double>(bytes.size());
            for (size_t k = 0; k < bytes.size(); ++k) {
                gates_[t][k] = mean > 0.0 ? -slope * bytes[k] / mean : 0.0;
            }
            clamp_gates(gates_[t]);
            expected += dot(softmax(gates_[t], tau_at(0)), bytes);
        }
        return expected;
    };
    init_uniform();
    // The expected size falls with the slope (its derivative is minus a variance): bisection.
    double low = -options_.logit_range * options_.tau_start, high = -low;
    for (int i = 0; i < 200 && low < high; ++i) {
        const double middle = 0.5 * (low + high);
        (tilt(middle) > target_bytes_ ? low : high) = middle;
    }
    tilt(0.5 * (low + high));
}

void Gates::tilt(double scale, double price) {
    for (size_t t = 0; t < tensors_.size(); ++t) {
        for (size_t k = 0; k < gates_[t].size(); ++k) {
            gates_[t][k] = -scale * (tensors_[t].cost[k] + price * tensors_[t].bytes[k]);
        }
        clamp_gates(gates_[t]);
    }
}

void Gates::init_at_costs(double entropy) {
    double largest = 0.0;
    for (const GateTensor& tensor : tensors_) {
        if (tensor.cost.empty()) {
            usage(fmt::format("tensor {} has no costs", tensor.name));
        }
        largest = std::max(largest, *std::max_element(tensor.cost.begin(), tensor.cost.end()));
    }
    init_uniform();
    if (largest <= 0.0) {
        return init_at_target();
    }
    // Both in logarithms: costs and bytes have very different units.
    constexpr int kSteps = 60;
    const auto at_scale = [&](double log_scale) {
        double low = std::log(largest) - 60.0, high = std::log(largest);
        for (int i = 0; i < kSteps; ++i) {
            const double middle = 0.5 * (low + high);
            tilt(std::exp(log_scale), std::exp(middle));
            (expected_bytes() > target_bytes_ ? low : high) = middle;
        }
        tilt(std::exp(log_scale), std::exp(high));
        return this->entropy();
    };
    double low = -std::log(largest) - 10.0, high = -std::log(largest) + 40.0;
    for (int i = 0; i < kSteps; ++i) {
        const double middle = 0.5 * (low + high);
        (at_scale(middle) > entropy ? low : high) = middle;
    }
    at_scale(high);
}

void Gates::init_from_scores(std::span<const std::vector<double>> scores, double scale) {
    if (scores.size() != tensors_.size() || !std::isfinite(scale) || scale < 0.0) {
        usage(fmt::format("scores for {} tensors instead of {}, or a bad scale", scores.size(),
                          tensors_.size()));
    }
    init_uniform();
    for (size_t t = 0; t < tensors_.size(); ++t) {
        const bool finite = std::all_of(scores[t].begin(), scores[t].end(),
                                        [](double x) { return std::isfinite(x); });
        if (scores[t].size() != gates_[t].size() || !finite) {
            usage(fmt::format("the scores of tensor {} are not finite or not one per type",
                              tensors_[t].name));
        }
        const double least = *std::min_element(scores[t].begin(), scores[t].end());
        for (size_t k = 0; k < scores[t].size(); ++k) {
            gates_[t][k] = -scale * (scores[t][k] - least);
        }
        clamp_gates(gates_[t]);
    }
}

void Gates::clamp_gates(std::vector<double>& gates) const {
    const double floor =
        *std::max_element(gates.begin(), gates.end()) - options_.logit_range * options_.tau_end;
    for (double& g : gates) {
        g = std::max(g, floor);
    }
}

double Gates::tau_at(int64_t step) const {
    const GateOptions& o = options_;
    const int64_t last = o.n_steps - 1;
    const double x = last == 0 ? 1.0
                               : static_cast<double>(std::clamp<int64_t>(step, 0, last)) /
                                     static_cast<double>(last);
    switch (o.tau_schedule) {
        case Schedule::constant:
            return o.tau_start;
        case Schedule::linear:
            return o.tau_start + (o.tau_end - o.tau_start) * x;
        case Schedule::exponential:
            break;
    }
    return o.tau_start * std::pow(o.tau_end / o.tau_start, x);
}

double Gates::lr_at(int64_t step) const {
    const GateOptions& o = options_;
    const double at = static_cast<double>(std::clamp<int64_t>(step, 0, o.n_steps - 1));
    const double warmup = std::floor(o.warmup_share * static_cast<double>(o.n_steps));
    if (at < warmup) {
        return o.lr * (at + 1.0) / (warmup + 1.0);
    }
    const double rest = static_cast<double>(o.n_steps - 1) - warmup;
    const double x = rest > 0.0 ? (at - warmup) / rest : 0.0;
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * x));
    return o.lr * (o.lr_end_ratio + (1.0 - o.lr_end_ratio) * cosine);
}

double Gates::expected_bytes() const {
    double expected = fixed_bytes_;
    for (size_t t = 0; t < tensors_.size(); ++t) {
        expected += dot(probabilities(t), tensors_[t].bytes);
    }
    return expected;
}

double Gates::rounding() const {
    double sum = 0.0;
    for (size_t t = 0; t < tensors_.size(); ++t) {
        const std::vector<double> p = probabilities(t);
        for (size_t k = 0; k < tensors_[t].cost.size(); ++k) {
            sum += p[k] * (1.0 - p[k]) * tensors_[t].cost[k];
        }
    }
    return sum;
}

double Gates::entropy() const {
    double sum = 0.0;
    for (size_t t = 0; t < tensors_.size(); ++t) {
        for (const double p : probabilities(t)) {
            sum -= p * std::log(p);
        }
    }
    return tensors_.empty() ? 0.0 : sum / static_cast<double>(tensors_.size());
}

size_t Gates::argmax(size_t tensor) const {
    const std::vector<double>& g = gates_[tensor];
    return static_cast<size_t>(std::max_element(g.begin(), g.end()) - g.begin());
}

std::vector<std::vector<double>> Gates::gradient(
    std::span<const std::vector<double>> contractions) const {
    VOODOO_CHECK(contractions.size() == tensors_.size(), "contractions of {} tensors instead of {}",
                 contractions.size(), tensors_.size());
    const Penalty penalty =
        size_penalty(expected_bytes(), target_bytes_, options_.penalty_weight, options_.dead_zone);
    std::vector<std::vector<double>> grad;
    for (size_t t = 0; t < tensors_.size(); ++t) {
        VOODOO_CHECK(contractions[t].size() == gates_[t].size(),
                     "{} contractions of tensor {} instead of {}", contractions[t].size(),
                     tensors_[t].name, gates_[t].size());
        const std::vector<double> p = probabilities(t);
        const std::vector<double>& bytes = tensors_[t].bytes;
        std::vector<double> rounding(p.size(), 0.0);
        for (size_t k = 0; k < tensors_[t].cost.size(); ++k) {
            rounding[k] = options_.lambda_kl * tensors_[t].cost[k] * (1.0 - 2.0 * p[k]);
        }
        std::vector<double>& g = grad.emplace_back();
        for (size_t k = 0; k < p.size(); ++k) {
            // x_k - sum_j p_j x_j as a sum of differences: no cancellation where one type has won.
            double slope = 0.0;
            for (size_t j = 0; j < p.size(); ++j) {
                slope += p[j] * (contractions[t][k] - contractions[t][j] + rounding[k] -
                                 rounding[j] + penalty.grad_bytes * (bytes[k] - bytes[j]));
            }
            g.push_back(p[k] * slope / tau());
        }
    }
    return grad;
}

void Gates::accumulate_scores(std::span<const std::vector<double>> contractions) {
    const double decay = options_.score_decay;
    score_weight_ = decay * score_weight_ + 1.0;
    for (size_t t = 0; t < tensors_.size(); ++t) {
        const std::vector<double> p = probabilities(t);
        const double mean_c = dot(p, contractions[t]);
        for (size_t k = 0; k < p.size(); ++k) {
            const double change = contractions[t][k] - mean_c;
            score_[t][k] = decay * score_[t][k] + change;
            score_weighted_[t][k] = decay * score_weighted_[t][k] + p[k] * change;
        }
    }
}

void Gates::adam(const std::vector<std::vector<double>>& gradient, double lr) {
    const GateOptions& o = options_;
    ++n_applied_;
    const double unbias1 = 1.0 - std::pow(o.beta1, static_cast<double>(n_applied_));
    const double unbias2 = 1.0 - std::pow(o.beta2, static_cast<double>(n_applied_));
    for (size_t t = 0; t < gates_.size(); ++t) {
        for (size_t k = 0; k < gates_[t].size(); ++k) {
            const double g = gradient[t][k];
            mean_[t][k] = o.beta1 * mean_[t][k] + (1.0 - o.beta1) * g;
            second_[t][k] = o.beta2 * second_[t][k] + (1.0 - o.beta2) * g * g;
            gates_[t][k] -=
                lr * (mean_[t][k] / unbias1) / (std::sqrt(second_[t][k] / unbias2) + o.epsilon);
        }
        clamp_gates(gates_[t]);
    }
}

GateStepResult Gates::step(std::span<const std::vector<double>> contractions,
                           const LossParts& loss) {
    GateStepResult out;
    GateRecord& record = out.record;
    record.step = step_;
    record.loss = loss;
    record.expected_bytes = expected_bytes();
    record.penalty = size_penalty(record.expected_bytes, target_bytes_, options_.penalty_weight,
                                  options_.dead_zone)
                         .value;
    record.rounding = rounding();
    record.total = options_.ce_weight * loss.ce + options_.lambda_kl * (loss.kl + record.rounding) +
                   record.penalty;
    record.entropy = entropy();
    record.tau = tau();
    record.lr = lr_at(step_);

    const std::vector<std::vector<double>> grad = gradient(contractions);
    double squares = 0.0;
    const auto report = [&](const std::string& where) {
        record.applied = false;
        if (out.non_finite.size() < kMaxReported) {
            out.non_finite.push_back(where);
        }
    };
    if (!std::isfinite(record.total)) {
        report("loss");
    }
    for (size_t t = 0; t < grad.size(); ++t) {
        for (size_t k = 0; k < grad[t].size(); ++k) {
            // One bad contraction spoils the whole tensor's gradient: name the contraction.
            if (!std::isfinite(contractions[t][k])) {
                report(tensors_[t].name + ":" + tensors_[t].types[k]);
            }
            squares += grad[t][k] * grad[t][k];
        }
    }
    if (record.applied && !std::isfinite(squares)) {
        report("gradient norm");
    }
    if (record.applied) {
        record.grad_norm = std::sqrt(squares);
        accumulate_scores(contractions);
        adam(grad, record.lr);
    } else {
        record.grad_norm = std::numeric_limits<double>::quiet_NaN();
    }
    ++step_;
    history_.push_back(record);
    return out;
}

std::vector<std::vector<double>> Gates::scores(GateScore kind) const {
    std::vector<std::vector<double>> out;
    for (size_t t = 0; t < gates_.size(); ++t) {
        std::vector<double>& row = out.emplace_back(gates_[t].size(), 0.0);
        const std::vector<double> p = softmax(gates_[t], options_.tau_end);
        for (size_t k = 0; k < row.size(); ++k) {
            switch (kind) {
                case GateScore::gates:
                    row[k] = -gates_[t][k];
                    break;
                case GateScore::log_prob:
                    row[k] = -std::log(p[k]);
                    break;
                case GateScore::first_order:
                    row[k] = score_weight_ > 0.0 ? score_[t][k] / score_weight_ : 0.0;
                    break;
                case GateScore::first_order_weighted:
                    row[k] = score_weight_ > 0.0 ? score_weighted_[t][k] / score_weight_ : 0.0;
                    break;
            }
        }
    }
    return out;
}

}  // namespace voodoo::search
