// Sampling is ours (softmax and inverse distribution in one thread per sequence): llama.cpp's
// sampler chain builds and sorts a candidate array of the whole vocabulary for each token, which
// costs several times as much.
#include "model/generate.h"

#include "base/random.h"
#include "base/threads.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace voodoo::model {

namespace {

/// Chunks are generated in groups of as many as are decoded together; all of a group have the same
/// length, so that every step is one token for each.
class Generator {
public:
    Generator(const Model& model, const GenerateOptions& options, const Cancellation& cancellation)
        : model_(model),
          options_(options),
          special_(special_tokens(model)),
          width_(std::min(options.n_parallel, options.n_chunks)),
          context_(model, context_options(cancellation)),
          pool_(context_.n_threads()) {}

    TokenChunks run(Observer& observer, const Cancellation& cancellation) {
        TokenChunks chunks;
        chunks.chunk_len = options_.chunk_len;
        chunks.tokens.resize(static_cast<size_t>(options_.n_chunks) *
                             static_cast<size_t>(options_.chunk_len));
        for (int32_t first = 0; first < options_.n_chunks; first += width_) {
            generate_group(chunks, first, std::min(width_, options_.n_chunks - first), observer,
                           cancellation);
        }
        return chunks;
    }

private:
    ContextOptions context_options(const Cancellation& cancellation) const {
        ContextOptions context;
        context.n_seq_max = static_cast<uint32_t>(width_);
        context.n_ctx = context.n_seq_max * static_cast<uint32_t>(options_.chunk_len);
        context.n_batch = context.n_seq_max;
        context.n_ubatch = context.n_seq_max;
        context.n_threads = options_.n_threads;
        context.cancellation = &cancellation;
        return context;
    }

    /// First token of a document.
    Token start_token(Random& random) const {
        if (options_.start == StartToken::automatic) {
            if (special_.bos) {
                return *special_.bos;
            }
            if (special_.eos) {
                return *special_.eos;
            }
        }
        const auto n_vocab = static_cast<uint64_t>(model_.n_vocab());
        for (int attempt = 0; attempt < 64; ++attempt) {
            const auto token = static_cast<Token>(random.below(n_vocab));
            if (!is_end_of_generation(model_, token)) {
                return token;
            }
        }
        return 0;
    }

    void generate_group(TokenChunks& chunks, int32_t first, int32_t n, Observer& observer,
                        const Cancellation& cancellation) {
        const auto length = static_cast<size_t>(options_.chunk_len);
        const auto token_at = [&](int32_t i, size_t position) -> Token& {
            return chunks.tokens[static_cast<size_t>(first + i) * length + position];
        };
        std::vector<Random> randoms;
        for (int32_t i = 0; i < n; ++i) {
            randoms.emplace_back(options_.seed, fmt::format("generate/{}", first + i));
            token_at(i, 0) = start_token(randoms.back());
        }
        context_.clear();
        Batch batch;
        for (size_t position = 0; position + 1 < length; ++position) {
            cancellation.check();
            batch.clear();
            for (int32_t i = 0; i < n; ++i) {
                batch.add(token_at(i, position), static_cast<int32_t>(position), i, true);
            }
            context_.decode(batch);
            const std::span<const float> logits = context_.all_logits(static_cast<size_t>(n));
            const auto n_vocab = logits.size() / static_cast<size_t>(n);
            pool_.parallel_for(n, 1, [&](int64_t begin, int64_t end, int) {
                for (int64_t i = begin; i < end; ++i) {
                    token_at(static_cast<int32_t>(i), position + 1) =
                        next_token(token_at(static_cast<int32_t>(i), position), position,
                                   logits.subspan(static_cast<size_t>(i) * n_vocab, n_vocab),
                                   randoms[static_cast<size_t>(i)]);
                }
            });
            observer.stage_progress("generate",
                                    static_cast<double>(first) * static_cast<double>(length) +
                                        static_cast<double>(position + 2) * n,
                                    "");
        }
    }

    Token next_token(Token current, size_t position, std::span<const float> logits,
                     Random& random) const {
        // A start token may itself count as an end (BOS = EOS in some vocabularies): at position 0
        // it is a start.
        if (position > 0 && is_end_of_generation(model_, current)) {
            const Token start = start_token(random);
            if (start != current) {
                return start;
            }
        }
        const Token token = sample_token(logits, options_.temperature, random.uniform());
        if (token < 0) {
            throw Error(ErrorKind::bad_file,
                        "the model's logits are not finite, so that nothing can be sampled",
                        model_.path().string(), "check the file, or give a calibration text");
        }
        return token;
    }

    const Model& model_;
    const GenerateOptions& options_;
    SpecialTokens special_;
    int32_t width_;
    Context context_;
    ThreadPool pool_;
};

void check(const GenerateOptions& options) {
    const auto refuse = [](const std::string& message) {
        throw Error(ErrorKind::usage, message, "generate");
    };
    if (options.n_chunks < 1 || options.chunk_len < 2 || options.n_parallel < 1) {
        refuse("at least one chunk of two tokens and one sequence at a time are needed");
    }
    if (!(options.temperature > 0.0) || !std::isfinite(options.temperature)) {
        refuse(fmt::format("temperature {} is not positive and finite", options.temperature));
    }
}

}  // namespace

Token sample_token(std::span<const float> logits, double temperature, double u) {
    float max_logit = -INFINITY;
    bool valid = true;
    for (const float logit : logits) {
        valid &= logit < INFINITY;  // false for NaN too
        max_logit = std::max(max_logit, logit);
    }
    if (!valid || max_logit == -INFINITY) {
        return -1;
    }
    const auto inverse_temperature = static_cast<float>(1.0 / temperature);
    const auto weight = [&](float logit) {
        return std::exp((logit - max_logit) * inverse_temperature);
    };
    double total = 0.0;
    for (const float logit : logits) {
        total += static_cast<double>(weight(logit));
    }
    double remaining = u * total;
    Token last_possible = -1;
    for (size_t i = 0; i < logits.size(); ++i) {
        const auto w = static_cast<double>(weight(logits[i]));
        if (w > 0.0) {
            last_possible = static_cast<Token>(i);
            if (remaining < w) {
                return last_possible;
            }
        }
        remaining -= w;
    }
    return last_possible;  // rounding left a crumb beyond the last token
}

TokenChunks generate(const Model& model, const GenerateOptions& options, Observer& observer,
                     const Cancellation& cancellation) {
    check(options);
    model.require_causal("generating calibration text");
    const auto started = std::chrono::steady_clock::now();
    observer.stage_begin(
        "generate", static_cast<double>(options.n_chunks) * static_cast<double>(options.chunk_len),
        "tokens");
    TokenChunks chunks = Generator(model, options, cancellation).run(observer, cancellation);
    observer.stage_end(
        "generate",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(), false);
    return chunks;
}

}  // namespace voodoo::model
