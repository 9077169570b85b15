#include "tools/train_tiny.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "base/units.h"
#include "engine/executor.h"
#include "engine/loss.h"
#include "graph/functionalize.h"
#include "model/capture.h"
#include "model/tokenize.h"

namespace voodoo::tools {

namespace {

using Tokens = std::vector<int32_t>;

/// The parameters as the engine's weights, and the engine's gradients as theirs.
class ParameterOutlets : public engine::WeightSource, public engine::GradientSink {
public:
    ParameterOutlets(const std::vector<engine::WeightInfo>& infos,
                     const std::vector<gguf::PlannedTensor>& tensors,
                     std::vector<Parameter>& parameters)
        : infos_(infos) {
        for (const engine::WeightInfo& info : infos) {
            Parameter* found = nullptr;
            for (size_t i = 0; i < tensors.size(); ++i) {
                if (tensors[i].name == info.name) {
                    found = &parameters[i];
                }
            }
            VOODOO_CHECK(found != nullptr, "the graph reads {}, which is no parameter", info.name);
            VOODOO_CHECK(static_cast<int64_t>(found->value.size()) == info.n_elements(),
                         "{} has {} weights in the graph", info.name, info.n_elements());
            parameters_.push_back(found);
        }
    }

    void load(int index, float* rows, float* transposed) override {
        const auto i = static_cast<size_t>(index);
        const std::vector<float>& w = parameters_[i]->value;
        std::copy(w.begin(), w.end(), rows);
        if (transposed == nullptr) {
            return;
        }
        const auto n_columns = static_cast<size_t>(infos_[i].ne[0]);
        const auto n_rows = static_cast<size_t>(infos_[i].ne[1]);
        for (size_t matrix = 0; matrix < w.size(); matrix += n_rows * n_columns) {
            for (size_t r = 0; r < n_rows; ++r) {
                for (size_t c = 0; c < n_columns; ++c) {
                    transposed[matrix + c * n_rows + r] = w[matrix + r * n_columns + c];
                }
            }
        }
    }

    void take(int index, const float* dw, int64_t first_row, int64_t n_rows,
              int /*thread*/) override {
        const auto i = static_cast<size_t>(index);
        float* grad = parameters_[i]->grad.data() + first_row * infos_[i].ne[0];
        for (int64_t at = 0; at < n_rows * infos_[i].ne[0]; ++at) {
            grad[at] += dw[at];
        }
    }

private:
    const std::vector<engine::WeightInfo>& infos_;
    std::vector<Parameter*> parameters_;
};

class Trainer {
public:
    Trainer(const std::filesystem::path& path, const TextSplit& split, const TrainOptions& options)
        : options_(options),
          tensors_(tiny_tensors(options.shape)),
          parameters_(random_parameters(options.shape, options.seed)),
          pool_(options.n_threads) {
        // llama.cpp builds the graph from a file: the untrained model is written first.
        write_tiny(path, options.shape, tiny_metadata(options.shape, options.name), parameters_);
        model::LoadOptions load;
        load.use_extra_bufts = false;
        const model::Model model = model::Model::load(path, load);
        tokenize(model, split);
        executor_.emplace(capture(model), executor_options());
        outlets_.emplace(executor_->weights(), tensors_, parameters_);
    }

    double valid_loss() {
        double sum = 0;
        double square = 0;
        int64_t n = 0;
        const auto length = static_cast<size_t>(batch_tokens());
        for (size_t first = 0; first < valid_.tokens.size(); first += length) {
            const auto rest = std::span(valid_.tokens).subspan(first);
            const size_t n_scored = std::min(length, rest.size());
            Tokens batch(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(n_scored));
            batch.resize(length, bos_);  // sequences to fill the last batch, not scored
            const auto scored = std::span<const int32_t>(batch).first(n_scored);
            TokenLosses losses(scored, valid_.chunk_len, executor_->n_vocab());
            std::vector<float> hidden;
            const std::span<const int32_t> batches[] = {batch};
            executor_->forward(batches, *outlets_, nullptr, [&](int, std::span<const float> h) {
                hidden.assign(h.begin(), h.end());
            });
            executor_->logits(
                1, *outlets_, [&](int) { return std::span<const float>(hidden); }, losses);
            sum += losses.sum;
            square += losses.square;
            n += losses.n;
        }
        const double mean = sum / static_cast<double>(n);
        const double variance = square / static_cast<double>(n) - mean * mean;
        valid_error_ = std::sqrt(variance / static_cast<double>(n - 1));
        return mean;
    }

    /// One update; returns the training loss before it.
    double step(int number) {
        const Tokens tokens = draw_batch();
        const std::span<const int32_t> batches[] = {tokens};
        engine::DistillationLoss loss(batches, options_.n_sequences, executor_->n_vocab(),
                                      {.cross_entropy = 1.0, .kl = 0.0}, {}, pool_);
        executor_->step(batches, *outlets_, loss, *outlets_);
        const double lr =
            learning_rate(number, options_.n_steps, options_.n_warmup, options_.peak_lr);
        norm_ = adamw_step(parameters_, adamw_, lr, number, pool_);
        VOODOO_CHECK(loss.sums().finite && std::isfinite(norm_),
                     "step {}: loss {} with gradient norm {}", number, loss.value(), norm_);
        return loss.value();
    }

    void round() { round_matrices(options_.shape, parameters_); }
    void write(const std::filesystem::path& path) const {
        write_tiny(path, options_.shape,
                   tiny_metadata(options_.shape, options_.name, options_.extra), parameters_);
    }
    double gradient_norm() const { return norm_; }
    double valid_error() const { return valid_error_; }
    std::span<const int32_t> valid_tokens() const { return valid_.tokens; }
    size_t n_train_tokens() const { return train_.size(); }
    int64_t n_weights() const {
        int64_t n = 0;
        for (const Parameter& p : parameters_) {
            n += static_cast<int64_t>(p.value.size());
        }
        return n;
    }

private:
    /// Cross-entropy of the second half of each chunk, as llama-perplexity scores it.
    class TokenLosses : public engine::Loss {
    public:
        TokenLosses(std::span<const int32_t> tokens, int64_t chunk_len, int64_t n_vocab)
            : tokens_(tokens), chunk_len_(chunk_len), n_vocab_(n_vocab) {}

        void add(int, int64_t first, int64_t n_rows, float* logits, bool) override {
            for (int64_t i = 0; i < n_rows; ++i) {
                const int64_t token = first + i;
                if (token >= static_cast<int64_t>(tokens_.size())) {
                    return;
                }
                const int64_t position = token % chunk_len_;
                if (position < chunk_len_ / 2 || position + 1 == chunk_len_) {
                    continue;
                }
                const float* row = logits + i * n_vocab_;
                const double max = static_cast<double>(*std::max_element(row, row + n_vocab_));
                double exps = 0;
                for (int64_t v = 0; v < n_vocab_; ++v) {
                    exps += std::exp(static_cast<double>(row[v]) - max);
                }
                const int32_t target = tokens_[static_cast<size_t>(token) + 1];
                const double ce = max + std::log(exps) - static_cast<double>(row[target]);
                sum += ce;
                square += ce * ce;
                ++n;
            }
        }

        double sum = 0;
        double square = 0;
        int64_t n = 0;

    private:
        std::span<const int32_t> tokens_;
        int64_t chunk_len_;
        int64_t n_vocab_;
    };

    int64_t batch_tokens() const {
        return static_cast<int64_t>(options_.n_sequences) * options_.shape.n_ctx;
    }

    engine::ExecutorOptions executor_options() const {
        engine::ExecutorOptions options;
        options.n_threads = options_.n_threads;
        return options;
    }

    void tokenize(const model::Model& model, const TextSplit& split) {
        // As `-f` of llama.cpp's tools reads a file: without its last newline.
        std::string_view valid = split.valid;
        if (valid.ends_with('\n')) {
            valid.remove_suffix(1);
        }
        const model::SpecialTokens special = model::special_tokens(model);
        const auto length = static_cast<int32_t>(options_.shape.n_ctx);
        valid_ = model::chunk_tokens(special, model::tokenize(model, valid), length);
        train_ = model::tokenize(model, split.train, false);
        VOODOO_CHECK(special.add_bos, "the model's vocabulary wants no BOS");
        bos_ = *special.bos;
        if (train_.size() < static_cast<size_t>(options_.shape.n_ctx)) {
            throw Error(ErrorKind::usage,
                        fmt::format("{} bytes of training text are too few for sequences of {}",
                                    split.train.size(), options_.shape.n_ctx),
                        {}, "give more text");
        }
    }

    graph::Graph capture(const model::Model& model) const {
        // Random tokens, so that the leaf that holds them can't be taken for positions.
        Random random(options_.seed, "capture");
        Tokens tokens(static_cast<size_t>(batch_tokens()));
        for (int32_t& token : tokens) {
            token = static_cast<int32_t>(random.below(static_cast<uint64_t>(model.n_vocab())));
        }
        model::CaptureOptions options;
        options.n_sequences = options_.n_sequences;
        options.n_threads = options_.n_threads;
        return graph::functionalize(model::capture(model, tokens, options).trace);
    }

    /// Sequences from random places of the text, their first token replaced by BOS.
    Tokens draw_batch() {
        Tokens tokens;
        const auto length = static_cast<size_t>(options_.shape.n_ctx);
        for (int s = 0; s < options_.n_sequences; ++s) {
            const auto at = static_cast<std::ptrdiff_t>(random_.below(train_.size() - length + 1));
            tokens.insert(tokens.end(), train_.begin() + at,
                          train_.begin() + at + static_cast<std::ptrdiff_t>(length));
            tokens[tokens.size() - length] = bos_;
        }
        return tokens;
    }

    const TrainOptions& options_;
    AdamwOptions adamw_;
    std::vector<gguf::PlannedTensor> tensors_;
    std::vector<Parameter> parameters_;
    ThreadPool pool_;
    Random random_{options_.seed, "batches"};
    Tokens train_;
    model::TokenChunks valid_;
    int32_t bos_ = 0;
    std::optional<engine::Executor> executor_;
    std::optional<ParameterOutlets> outlets_;
    double norm_ = 0;
    double valid_error_ = 0;
};

}  // namespace

double unigram_entropy(std::span<const int32_t> tokens) {
    std::map<int32_t, int64_t> counts;
    for (const int32_t token : tokens) {
        ++counts[token];
    }
    double entropy = 0;
    for (const auto& [token, count] : counts) {
        const double p = static_cast<double>(count) / static_cast<double>(tokens.size());
        entropy -= p * std::log(p);
    }
    return entropy;
}

TrainResult train_tiny(const std::filesystem::path& path, const TextSplit& split,
                       const TrainOptions& options,
                       const std::function<void(const std::string&)>& report) {
    // llama.cpp would abort.
    if (options.shape.n_expert > 0 && (options.shape.n_expert_used == 0 ||
                                       options.shape.n_expert_used > options.shape.n_expert)) {
        throw Error(ErrorKind::usage,
                    fmt::format("{} of {} experts can't be used", options.shape.n_expert_used,
                                options.shape.n_expert));
    }
    Trainer trainer(path, split, options);
    TrainResult result;
    result.n_weights = trainer.n_weights();
    result.unigram_entropy = unigram_entropy(trainer.valid_tokens());
    result.first_valid_loss = trainer.valid_loss();
    report(fmt::format("{} weights, {} training tokens, {} validation tokens", result.n_weights,
                       trainer.n_train_tokens(), trainer.valid_tokens().size()));
    report(fmt::format("step 0: validation loss {:.4f}, unigram entropy {:.4f}",
                       result.first_valid_loss, result.unigram_entropy));
    const auto start = std::chrono::steady_clock::now();
    double average = 0;
    for (int step = 1; step <= options.n_steps; ++step) {
        const double loss = trainer.step(step);
        average = step == 1 ? loss : 0.95 * average + 0.05 * loss;
        const bool validates = step % options.n_valid_every == 0 && step < options.n_steps;
        if (step % 20 == 0 || validates) {
            const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
            report(fmt::format(
                "step {}: loss {:.4f}, mean {:.4f}, gradient norm {:.3f}, {}{}", step, loss,
                average, trainer.gradient_norm(), format_duration(spent.count()),
                validates ? fmt::format(", validation loss {:.4f}", trainer.valid_loss()) : ""));
        }
    }
    trainer.round();
    result.valid_loss = trainer.valid_loss();
    result.valid_loss_error = trainer.valid_error();
    trainer.write(path);
    return result;
}

}  // namespace voodoo::tools
