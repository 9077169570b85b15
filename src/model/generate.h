// Calibration text that the teacher itself writes: sampled at temperature 1 from its own
// distribution, many sequences at once.
#pragma once

#include "model/tokenize.h"

namespace voodoo::model {

enum class StartToken {
    /// BOS where the vocabulary has one, else EOS, else a random token.
    automatic,
    /// A uniformly random token that is no end of generation.
    random,
};

struct GenerateOptions {
    int32_t n_chunks = 16;
    /// Tokens in each chunk, its start token included.
    int32_t chunk_len = 512;
    uint64_t seed = 1;
    /// Sequences decoded together.
    int32_t n_parallel = 32;
    double temperature = 1.0;
    StartToken start = StartToken::automatic;
    /// 0 = available_threads().
    int n_threads = 0;
};

/// n_chunks chunks of chunk_len sampled tokens. No top-k, no top-p. A document that ends within a
/// chunk (end of generation is kept) is followed by a fresh one in the same chunk, begun like the
/// chunk itself. The same model, options and thread count give the same tokens. Stage "generate" in
/// tokens. Throws Error(usage) for options out of range, Error(unsupported_model) if the model
/// isn't causal, Error(interrupted), Error(internal) if the model's logits aren't finite.
TokenChunks generate(const Model& model, const GenerateOptions& options, Observer& observer,
                     const Cancellation& cancellation);

/// One draw from softmax(logits / temperature) by inverting its cumulative distribution at `u` in
/// [0, 1). Returns -1 if no logit is finite or one is NaN or +infinity; -infinity means probability
/// 0.
Token sample_token(std::span<const float> logits, double temperature, double u);

}  // namespace voodoo::model
