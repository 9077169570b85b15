// Models, contexts and batches over llama.cpp's C interface.
#include "model/model.h"

#include "base/threads.h"
#include "model/llama_handle.h"

#include <llama.h>

#include <algorithm>
#include <fstream>

namespace voodoo::model {

namespace {

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

bool says_out_of_memory(const std::string& reason) {
    return contains(reason, "failed to allocate") || contains(reason, "unable to allocate") ||
           contains(reason, "bad_alloc") || contains(reason, "out of memory");
}

/// llama.cpp reports load failures only in words.
ErrorKind load_error_kind(const std::string& reason) {
    if (says_out_of_memory(reason)) {
        return ErrorKind::out_of_memory;
    }
    if (contains(reason, "unknown model architecture") || contains(reason, "unknown tokenizer") ||
        contains(reason, "unknown pre-tokenizer") ||
        contains(reason, "unsupported model architecture")) {
        return ErrorKind::unsupported_model;
    }
    return ErrorKind::bad_file;
}

void check_readable(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
        throw Error(ErrorKind::io, "no such file", path.string());
    }
    if (!std::filesystem::is_regular_file(path, error)) {
        throw Error(ErrorKind::io, "not a regular file", path.string());
    }
    if (!std::ifstream(path, std::ios::binary)) {
        throw Error(ErrorKind::io, "can't open the file for reading", path.string());
    }
}

llama_flash_attn_type to_llama(FlashAttention flash_attention) {
    switch (flash_attention) {
        case FlashAttention::off:
            return LLAMA_FLASH_ATTN_TYPE_DISABLED;
        case FlashAttention::on:
            return LLAMA_FLASH_ATTN_TYPE_ENABLED;
        case FlashAttention::automatic:
            break;
    }
    return LLAMA_FLASH_ATTN_TYPE_AUTO;
}

bool cancellation_requested(void* data) {
    return static_cast<const Cancellation*>(data)->requested();
}

void check_options(const ContextOptions& options) {
    const auto refuse = [](const std::string& message) {
        throw Error(ErrorKind::usage, message, "Context");
    };
    if (options.n_ctx == 0 || options.n_batch == 0 || options.n_ubatch == 0) {
        refuse("n_ctx, n_batch and n_ubatch must be positive");
    }
    if (options.n_seq_max == 0 || options.n_seq_max > llama_max_parallel_sequences()) {
        refuse(fmt::format("{} sequences, but llama.cpp has 1 to {}", options.n_seq_max,
                           llama_max_parallel_sequences()));
    }
    if (options.n_seq_max > options.n_ctx) {
        refuse(fmt::format("{} sequences do not fit {} tokens of context", options.n_seq_max,
                           options.n_ctx));
    }
}

llama_context_params to_llama(const ContextOptions& options, int n_threads) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = options.n_batch;
    params.n_ubatch = options.n_ubatch;
    params.n_seq_max = options.n_seq_max;
    params.n_threads = n_threads;
    params.n_threads_batch = n_threads;
    params.flash_attn_type = to_llama(options.flash_attention);
    params.type_k = options.type_k;
    params.type_v = options.type_v;
    params.kv_unified = options.kv_unified;
    params.swa_full = options.swa_full;
    params.offload_kqv = options.offload_kqv;
    params.op_offload = options.op_offload;
    params.cb_eval = options.cb_eval;
    params.cb_eval_user_data = options.cb_eval_data;
    if (options.cancellation != nullptr) {
        params.abort_callback = cancellation_requested;
        params.abort_callback_data = const_cast<Cancellation*>(options.cancellation);
    }
    return params;
}

}  // namespace

Model Model::load(const std::filesystem::path& path, const LoadOptions& options) {
    init_llama();
    check_readable(path);

    llama_model_params params = llama_model_default_params();
    params.load_mode = options.mmap ? LLAMA_LOAD_MODE_AUTO : LLAMA_LOAD_MODE_NONE;
    params.use_extra_bufts = options.use_extra_bufts;
    params.n_gpu_layers = options.n_gpu_layers;
    params.vocab_only = options.vocab_only;

    LogCapture log;
    Model model;
    model.path_ = path;
    model.options_ = options;
    llama_model* loaded = llama_model_load_from_file(path.c_str(), params);
    if (loaded == nullptr) {
        const std::string reason = log.last_errors("llama.cpp gave no reason");
        throw Error(load_error_kind(reason), "llama.cpp can't load the model: " + reason,
                    path.string());
    }
    model.model_ = std::shared_ptr<llama_model>(loaded, llama_model_free);
    return model;
}

std::string Model::description() const {
    char text[256] = {};
    llama_model_desc(handle(), text, sizeof text);
    return text;
}

std::string Model::architecture() const {
    return find_metadata("general.architecture").value_or("");
}

std::optional<std::string> Model::find_metadata(const std::string& key) const {
    char first = '\0';
    const int32_t length = llama_model_meta_val_str(handle(), key.c_str(), &first, 1);
    if (length < 0) {
        return std::nullopt;
    }
    std::string value(static_cast<size_t>(length) + 1, '\0');
    llama_model_meta_val_str(handle(), key.c_str(), value.data(), value.size());
    value.pop_back();
    return value;
}

uint64_t Model::n_params() const {
    return llama_model_n_params(handle());
}

uint64_t Model::size_bytes() const {
    return llama_model_size(handle());
}

int32_t Model::n_embd() const {
    return llama_model_n_embd(handle());
}

int32_t Model::n_layer() const {
    return llama_model_n_layer(handle());
}

int32_t Model::n_vocab() const {
    return llama_vocab_n_tokens(vocab());
}

int32_t Model::n_ctx_train() const {
    return llama_model_n_ctx_train(handle());
}

bool Model::has_encoder() const {
    return llama_model_has_encoder(handle());
}

bool Model::has_decoder() const {
    return llama_model_has_decoder(handle());
}

bool Model::is_recurrent() const {
    return llama_model_is_recurrent(handle());
}

bool Model::is_hybrid() const {
    return llama_model_is_hybrid(handle());
}

bool Model::is_diffusion() const {
    return llama_model_is_diffusion(handle());
}

bool Model::has_tokenizer() const {
    return llama_vocab_type(vocab()) != LLAMA_VOCAB_TYPE_NONE;
}

void Model::require_causal(const std::string& purpose) const {
    if (has_encoder() || !has_decoder() || is_diffusion()) {
        throw Error(
            ErrorKind::unsupported_model,
            fmt::format(
                "{} needs a model that predicts each token from those before it, but {} is not one",
                purpose, architecture()),
            path_.string());
    }
}

const llama_vocab* Model::vocab() const {
    return llama_model_get_vocab(handle());
}

void Batch::clear() {
    tokens_.clear();
    positions_.clear();
    sequences_.clear();
    want_logits_.clear();
}

void Batch::reserve(size_t n_tokens) {
    tokens_.reserve(n_tokens);
    positions_.reserve(n_tokens);
    sequences_.reserve(n_tokens);
    want_logits_.reserve(n_tokens);
}

void Batch::add(Token token, int32_t position, int32_t sequence, bool want_logits) {
    tokens_.push_back(token);
    positions_.push_back(position);
    sequences_.push_back(sequence);
    want_logits_.push_back(want_logits ? 1 : 0);
}

void Context::Free::operator()(llama_context* context) const {
    llama_free(context);
}

Context::Context(const Model& model, const ContextOptions& options)
    : model_(model), options_(options) {
    check_options(options);
    if (model.options().vocab_only) {
        throw Error(ErrorKind::usage, "the model was loaded without its weights",
                    model.path().string());
    }
    n_threads_ = options.n_threads > 0 ? options.n_threads : available_threads();

    LogCapture log;
    context_.reset(llama_init_from_model(model.handle(), to_llama(options, n_threads_)));
    if (context_ == nullptr) {
        const std::string reason = log.last_errors("llama.cpp gave no reason");
        throw Error(
            says_out_of_memory(reason) ? ErrorKind::out_of_memory : ErrorKind::unsupported_model,
            "llama.cpp can't make a context: " + reason, model.path().string());
    }
}

uint32_t Context::n_ctx() const {
    return llama_n_ctx(handle());
}

uint32_t Context::n_batch() const {
    return llama_n_batch(handle());
}

void Context::clear() {
    // Models without a cache (encoders) have no memory object.
    if (llama_memory_t memory = llama_get_memory(handle())) {
        llama_memory_clear(memory, true);
    }
}

void Context::decode(const Batch& batch) {
    if (batch.size() == 0 || batch.size() > n_batch()) {
        throw Error(ErrorKind::usage,
                    fmt::format("a batch of {} tokens, but 1 to {} can be decoded at once",
                                batch.size(), n_batch()),
                    "Context::decode");
    }
    // llama.cpp takes pointers to mutable arrays and one pointer per token to its list of
    // sequences.
    std::vector<int32_t> n_sequences(batch.size(), 1);
    std::vector<llama_seq_id*> sequences(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
        sequences[i] = const_cast<llama_seq_id*>(&batch.sequences_[i]);
    }
    llama_batch view = {};
    view.n_tokens = static_cast<int32_t>(batch.size());
    view.token = const_cast<llama_token*>(batch.tokens_.data());
    view.pos = const_cast<llama_pos*>(batch.positions_.data());
    view.n_seq_id = n_sequences.data();
    view.seq_id = sequences.data();
    view.logits = const_cast<int8_t*>(batch.want_logits_.data());

    LogCapture log;
    const int32_t status = llama_decode(handle(), view);
    if (status == 0) {
        llama_synchronize(handle());
        return;
    }
    if (options_.cancellation != nullptr) {
        options_.cancellation->check();
    }
    const std::string reason = log.last_errors(fmt::format("llama_decode returned {}", status));
    const std::string where = model_.path().string();
    if (says_out_of_memory(reason)) {
        throw Error(ErrorKind::out_of_memory, "decoding failed: " + reason, where);
    }
    if (status == 1) {
        throw Error(ErrorKind::usage, "the tokens don't fit the context", where);
    }
    throw Error(status == -1 ? ErrorKind::usage : ErrorKind::internal, "decoding failed: " + reason,
                where);
}

std::span<const float> Context::logits_of(int32_t i) const {
    const float* logits = llama_get_logits_ith(handle(), i);
    VOODOO_CHECK(logits != nullptr, "no logits were asked for token {} of the batch", i);
    return {logits, static_cast<size_t>(model_.n_vocab())};
}

std::span<const float> Context::all_logits(size_t n_outputs) const {
    const float* logits = llama_get_logits(handle());
    VOODOO_CHECK(logits != nullptr || n_outputs == 0, "no logits were asked for");
    return {logits, n_outputs * static_cast<size_t>(model_.n_vocab())};
}

}  // namespace voodoo::model
