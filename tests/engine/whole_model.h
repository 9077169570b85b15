// The whole-model check: a captured model is replayed and differentiated, and both are compared
// with llama.cpp.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "autodiff/vjp.h"

namespace voodoo::engine {

struct TensorCheck {
    std::string name;
    double analytic = 0;
    double numeric = 0;
    double noise =
        0;  ///< of the numeric derivative, from the rounding of logits and weights, relative
    double difference = 0;  ///< |analytic - numeric| / |numeric|
    int n_rejected = 0;     ///< steps that changed a routing decision
    double error = 0;  ///< the part of `difference` that three times the noise does not explain
};

struct ModelCheck {
    std::string file;
    std::vector<autodiff::Unsupported> unsupported;  ///< not empty: nothing else was done
    double replay_error = 0;                         ///< relative L2 error of the replayed logits
    double exact_gelu_error =
        0;               ///< of the replay with exact GELU, where the model has a GELU from a table
    bool smooth = true;  ///< no table lookup: llama.cpp's own logits are differenced
    bool is_routed = false;  ///< experts: the replay is differenced, which shows the routing
    std::vector<TensorCheck> tensors;

    double worst_error() const;
};

struct CheckOptions {
    int n_tokens = 20;
    int n_sequences = 1;
    uint64_t memory_bytes = 0;  ///< of the executor: small values force many segments
    bool stored_types = false;  ///< replay with weights as stored
    double direction_scale = 1.0;
    bool gradients = true;
};

ModelCheck check_model(const std::filesystem::path& path, const CheckOptions& options);

}  // namespace voodoo::engine
