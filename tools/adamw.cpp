#include "tools/adamw.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace voodoo::tools {

namespace {

double gradient_norm(const std::vector<Parameter>& parameters) {
    double square = 0.0;
    for (const Parameter& p : parameters) {
        for (const float g : p.grad) {
            square += static_cast<double>(g) * static_cast<double>(g);
        }
    }
    return std::sqrt(square);
}

}  // namespace

void Parameter::resize(size_t n) {
    value.resize(n);
    grad.resize(n);
    first.resize(n);
    second.resize(n);
}

double adamw_step(std::vector<Parameter>& parameters, const AdamwOptions& options, double lr,
                  int step, ThreadPool& pool) {
    const double norm = gradient_norm(parameters);
    if (!std::isfinite(norm)) {
        return norm;
    }
    const auto scale = static_cast<float>(std::min(1.0, options.max_grad_norm / (norm + 1e-12)));
    const auto b1 = static_cast<float>(options.beta1);
    const auto b2 = static_cast<float>(options.beta2);
    const auto bias1 = static_cast<float>(1.0 - std::pow(options.beta1, step));
    const auto bias2 = static_cast<float>(1.0 - std::pow(options.beta2, step));
    const auto eps = static_cast<float>(options.epsilon);
    const auto rate = static_cast<float>(lr);
    for (Parameter& p : parameters) {
        const auto decay = p.decays ? static_cast<float>(options.weight_decay) : 0.0F;
        const auto n = static_cast<int64_t>(p.value.size());
        pool.parallel_for(n, 16384, [&](int64_t begin, int64_t end, int) {
            for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
                const float g = p.grad[i] * scale;
                p.first[i] = b1 * p.first[i] + (1.0F - b1) * g;
                p.second[i] = b2 * p.second[i] + (1.0F - b2) * g * g;
                const float move = p.first[i] / bias1 / (std::sqrt(p.second[i] / bias2) + eps);
                p.value[i] -= rate * (move + decay * p.value[i]);
                p.grad[i] = 0.0F;
            }
        });
    }
    return norm;
}

double learning_rate(int step, int n_steps, int n_warmup, double peak) {
    if (step <= n_warmup) {
        return peak * step / n_warmup;
    }
    const double done =
        static_cast<double>(step - n_warmup) / static_cast<double>(std::max(1, n_steps - n_warmup));
    return peak * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * std::min(1.0, done))));
}

}  // namespace voodoo::tools
