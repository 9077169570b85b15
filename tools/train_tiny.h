// Trains a tiny model from scratch with the engine's own weight gradients: what makes the model of
// models/, and a check of every gradient at once, since a wrong one keeps the loss from falling.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "tools/tiny_model.h"
#include "tools/tiny_text.h"

namespace voodoo::tools {

struct TrainOptions {
    TinyShape shape;      ///< n_ctx is also the length of a training sequence
    int n_sequences = 2;  ///< sequences of a step
    int n_steps = 1000;
    int n_warmup = 50;
    int n_valid_every = 200;  ///< steps between two validations; the last step always has one
    double peak_lr = 2e-3;
    uint64_t seed = 1;
    int n_threads = 0;  ///< 0: all that the process may use
    std::string name = "tiny-llama";
    gguf::Metadata extra;  ///< more metadata for the file
};

/// Losses in nats per token; a token is a byte of the text.
struct TrainResult {
    int64_t n_weights = 0;
    double unigram_entropy = 0;   ///< of the held-out text's own tokens: what no context can beat
    double first_valid_loss = 0;  ///< before the first step
    double valid_loss = 0;        ///< of the file as written, counted as llama-perplexity counts
    double valid_loss_error = 0;  ///< standard error of its mean
};

/// Trains on split.train, writes the model to `path`. `report` gets one line at a time.
/// Throws Error(usage) for texts that are too short or more experts used than there are, and
/// Error(internal) if the loss is not finite.
TrainResult train_tiny(const std::filesystem::path& path, const TextSplit& split,
                       const TrainOptions& options,
                       const std::function<void(const std::string&)>& report);

/// Entropy of the tokens' own frequencies, nats per token.
double unigram_entropy(std::span<const int32_t> tokens);

}  // namespace voodoo::tools
