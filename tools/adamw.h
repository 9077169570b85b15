// AdamW over the F32 weights of a small model.
#pragma once

#include <vector>

#include "base/threads.h"

namespace voodoo::tools {

/// A weight with its gradient and the optimizer's state.
struct Parameter {
    std::vector<float> value;
    std::vector<float> grad;
    std::vector<float> first;   ///< running mean of the gradient
    std::vector<float> second;  ///< running mean of its square
    bool decays = false;        ///< weight decay: matrices, not norms

    void resize(size_t n);
};

struct AdamwOptions {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;  ///< the gradient over all parameters is scaled down to this
};

/// One update (decoupled weight decay: Loshchilov and Hutter 2019, arxiv.org/abs/1711.05101):
///   m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,
///   w <- w - lr ( m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + decay w )
/// step counts from 1. Zeroes the gradients. Returns the norm of the gradient before clipping; if
/// that is not finite nothing is changed.
double adamw_step(std::vector<Parameter>& parameters, const AdamwOptions& options, double lr,
                  int step, ThreadPool& pool);

/// Linear rise to `peak` over n_warmup steps, then a half cosine down to a tenth of it at n_steps.
/// step counts from 1.
double learning_rate(int step, int n_steps, int n_warmup, double peak);

}  // namespace voodoo::tools
