// KL divergence of students from their teacher on a text, as `llama-perplexity --kl-divergence`
// measures it, without its logits file: teacher and students run side by side, and only a batch of
// teacher log-probabilities is kept.
#pragma once

#include "base/progress.h"
#include "eval/kl_stats.h"
#include "model/tokenize.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace voodoo::eval {

/// The defaults are llama-perplexity's, so that the figures agree with it.
struct EvalOptions {
    /// Tokens in a chunk; the second half of each is scored.
    int32_t n_ctx = 512;
    /// Negative = all.
    int32_t max_chunks = -1;
    /// Tokens decoded at once: max(1, n_batch / n_ctx) chunks. Each model holds logits of half of
    /// them in F32.
    int32_t n_batch = 2048;
    int32_t n_ubatch = 512;
    int n_threads = 0;
    int n_gpu_layers = 0;
    model::FlashAttention flash_attention = model::FlashAttention::automatic;
    /// Weight repacking (llama.cpp's default); it moves the figures a little.
    bool use_extra_bufts = true;
    /// Also return every position's KL divergence.
    bool keep_token_kl = false;
};

struct KlReport {
    std::filesystem::path path;
    std::string description;
    /// Of the file.
    uint64_t size_bytes = 0;
    /// Of its tensors, bits per weight.
    double bits_per_weight = 0.0;
    int32_t n_chunks = 0;
    int32_t n_ctx = 0;
    KlStatistics statistics;
    /// Mean KL divergence of each chunk in nats, for paired comparisons of students.
    std::vector<double> chunk_mean_kl;
    /// n_chunks x (n_ctx - 1 - n_ctx/2) values in nats; empty unless keep_token_kl.
    std::vector<float> token_kl;
    /// Decoding speed of the student on this machine.
    double tokens_per_second = 0.0;
};

/// One report per student, in their order; the teacher runs once. `chunks` are the text's tokens
/// without BOS or with it (model::chunk_tokens); their chunk_len takes the place of options.n_ctx.
/// Stage "eval" in chunks. Throws what Model::load and Context throw, Error(usage) for options out
/// of range or a student whose vocabulary has another size, Error(unsupported_model) for models
/// that are not causal.
std::vector<KlReport> evaluate_kl(const std::filesystem::path& teacher,
                                  const std::vector<std::filesystem::path>& students,
                                  const model::TokenChunks& chunks, const EvalOptions& options,
                                  Observer& observer, const Cancellation& cancellation);

/// The same on text, tokenized with the teacher's vocabulary as llama-perplexity does for its `-f`
/// file.
std::vector<KlReport> evaluate_kl(const std::filesystem::path& teacher,
                                  const std::vector<std::filesystem::path>& students,
                                  std::string_view text, const EvalOptions& options,
                                  Observer& observer, const Cancellation& cancellation);

/// Difference of mean KL (a - b) over the same chunks with the standard error of the paired
/// difference. Throws Error(usage) if the reports have different numbers of chunks.
Estimate paired_difference(const KlReport& a, const KlReport& b);

/// All figures; those that aren't finite become null.
nlohmann::json to_json(const KlReport& report);

}  // namespace voodoo::eval
