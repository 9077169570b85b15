// Loaded models and contexts of llama.cpp as owning C++ objects. A file that comes from outside is
// validated by the gguf layer before it gets here; llama.cpp trusts its input more than we do.
#pragma once

#include "base/error.h"
#include "base/progress.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct llama_model;
struct llama_context;
struct llama_vocab;

namespace voodoo::model {

using Token = int32_t;

struct LoadOptions {
    /// Map the file instead of reading it. Mapped weights are read-only.
    bool mmap = true;
    /// Let llama.cpp repack weights into layouts that its kernels like better (a second copy in
    /// memory).
    bool use_extra_bufts = true;
    /// Layers on the GPU; negative = all. Without a GPU backend it has no effect.
    int n_gpu_layers = 0;
    /// Only vocabulary and hyperparameters; such a model can't have a Context.
    bool vocab_only = false;
};

/// A model in memory. Copies share it; it is freed with its last copy or Context. Immutable, any
/// thread.
class Model {
public:
    /// Throws Error(io) if the file can't be opened, Error(unsupported_model) for an architecture
    /// or tokenizer that llama.cpp doesn't know, Error(out_of_memory), and Error(bad_file) for all
    /// else that it rejects, with llama.cpp's own last error lines as the reason.
    static Model load(const std::filesystem::path& path, const LoadOptions& options = {});

    const std::filesystem::path& path() const { return path_; }
    const LoadOptions& options() const { return options_; }

    /// llama.cpp's one-line description, e.g. "llama ?B Q4_K - Medium".
    std::string description() const;
    /// general.architecture, e.g. "llama".
    std::string architecture() const;
    /// A scalar metadata value printed as text, or nothing if the key is absent or an array.
    std::optional<std::string> find_metadata(const std::string& key) const;

    uint64_t n_params() const;
    /// Bytes of all tensors.
    uint64_t size_bytes() const;
    int32_t n_embd() const;
    int32_t n_layer() const;
    int32_t n_vocab() const;
    int32_t n_ctx_train() const;
    bool has_encoder() const;
    bool has_decoder() const;
    bool is_recurrent() const;
    bool is_hybrid() const;
    bool is_diffusion() const;
    /// True if the file has a tokenizer, so that text can become tokens.
    bool has_tokenizer() const;

    /// Throws Error(unsupported_model) that names `purpose` unless the model predicts the next
    /// token from the previous ones: no encoder, a decoder, not diffusion.
    void require_causal(const std::string& purpose) const;

    /// For src/model only.
    llama_model* handle() const { return model_.get(); }
    const llama_vocab* vocab() const;

private:
    Model() = default;

    std::shared_ptr<llama_model> model_;
    std::filesystem::path path_;
    LoadOptions options_;
};

enum class FlashAttention { off, on, automatic };

/// The defaults are those of llama-perplexity, llama-imatrix and llama-cli (one sequence of 512
/// tokens).
struct ContextOptions {
    /// Tokens over all sequences: each has n_ctx / n_seq_max of them unless kv_unified.
    uint32_t n_ctx = 512;
    uint32_t n_batch = 2048;
    uint32_t n_ubatch = 512;
    uint32_t n_seq_max = 1;
    FlashAttention flash_attention = FlashAttention::automatic;
    ggml_type type_k = GGML_TYPE_F16;
    ggml_type type_v = GGML_TYPE_F16;
    /// 0 = available_threads().
    int n_threads = 0;
    bool kv_unified = false;
    bool swa_full = false;
    bool offload_kqv = true;
    bool op_offload = true;
    /// Sees every node of the graph before (ask) and after it is computed; with user data.
    ggml_backend_sched_eval_callback cb_eval = nullptr;
    void* cb_eval_data = nullptr;
    /// Polled between nodes on the CPU: a request makes decode() throw Error(interrupted). Must
    /// outlive the context.
    const Cancellation* cancellation = nullptr;
};

/// Tokens to decode, with position, sequence and whether their logits are wanted.
class Batch {
public:
    void clear();
    void reserve(size_t n_tokens);
    void add(Token token, int32_t position, int32_t sequence, bool want_logits);
    size_t size() const { return tokens_.size(); }

private:
    friend class Context;
    std::vector<Token> tokens_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> sequences_;
    std::vector<int8_t> want_logits_;
};

/// The state of a model that decodes: KV cache, compute buffers, logits. One thread at a time.
class Context {
public:
    /// Throws Error(usage) for options that make no sense, Error(out_of_memory) if buffers can't be
    /// had, Error(unsupported_model) if llama.cpp refuses the combination of model and options.
    Context(const Model& model, const ContextOptions& options);

    const Model& model() const { return model_; }
    const ContextOptions& options() const { return options_; }
    int n_threads() const { return n_threads_; }
    uint32_t n_ctx() const;
    uint32_t n_batch() const;

    /// Forgets all sequences and zeroes the cache.
    void clear();

    /// Runs the batch (at most n_batch tokens). Throws Error(interrupted) after a cancellation,
    /// Error(out_of_memory) if a buffer can't be had, Error(usage) if the tokens don't fit the
    /// cache or are no tokens of the vocabulary, Error(internal) if the computation fails.
    void decode(const Batch& batch);

    /// Logits of the batch's i-th token (which had want_logits), n_vocab floats, valid until the
    /// next decode.
    std::span<const float> logits_of(int32_t i) const;
    /// Logits of all tokens with want_logits in batch order, one row of n_vocab after another.
    std::span<const float> all_logits(size_t n_outputs) const;

    /// For src/model only.
    llama_context* handle() const { return context_.get(); }

private:
    struct Free {
        void operator()(llama_context* context) const;
    };

    Model model_;
    ContextOptions options_;
    int n_threads_ = 1;
    std::unique_ptr<llama_context, Free> context_;
};

}  // namespace voodoo::model
