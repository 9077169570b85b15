// Records the graph that llama.cpp itself builds and runs for a batch of tokens.
#pragma once

#include <functional>
#include <vector>

#include "graph/trace.h"
#include "model/model.h"

namespace voodoo::model {

struct CaptureOptions {
    /// The batch is this many sequences of equal length, one after another in the tokens.
    int n_sequences = 1;
    /// Also run the graph and return llama.cpp's logits. Off: the decode is stopped before its
    /// first matmul.
    bool compute_logits = false;
    int n_threads = 0;
    /// Called for each weight that the graph uses before anything is computed, e.g. to change it in
    /// place (the model must then be loaded without mmap). For checks.
    std::function<void(ggml_tensor* weight)> on_weight;
};

struct Capture {
    graph::Trace trace;
    /// [n_tokens][n_vocab], empty unless asked for.
    std::vector<float> logits;
};

/// One llama_decode of `tokens` with a fresh cache in F32, flash attention off and logits for every
/// token. `model` must be loaded with use_extra_bufts = false, so that weights keep their file's
/// layout. Throws Error(usage) for tokens that do not divide into the sequences,
/// Error(unsupported_model) if the graph has no logits, else what Context throws.
Capture capture(const Model& model, std::span<const Token> tokens,
                const CaptureOptions& options = {});

}  // namespace voodoo::model
