#include "pipeline/calibration.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "model/generate.h"
#include "model/tokenize.h"
#include "pipeline/stage_timer.h"
#include "pipeline/weights.h"

namespace voodoo::pipeline {
namespace {

constexpr const char* kTokensFile = "tokens.i32";
constexpr const char* kStatesFile = "states.f32";
constexpr const char* kImatrixFile = "imatrix.gguf";

/// n of the available chunks, evenly spread, so that every file and domain is seen.
std::vector<int32_t> spread(const std::vector<std::vector<int32_t>>& chunks, size_t n) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) {
        const auto& chunk = chunks[i * chunks.size() / n];
        tokens.insert(tokens.end(), chunk.begin(), chunk.end());
    }
    return tokens;
}

}  // namespace

int sequences_per_batch(const Settings& settings) {
    return static_cast<int>(std::max<int64_t>(1, settings.tokens_per_step / settings.chunk_len));
}

std::span<const float> Calibration::states(int i) const {
    const auto n = static_cast<size_t>(batch_tokens() * n_hidden);
    const auto* data = reinterpret_cast<const float*>(states_.bytes().data());
    return {data + static_cast<size_t>(i) * n, n};
}

void Calibration::drop_states(int i) const {
    const size_t size = static_cast<size_t>(batch_tokens() * n_hidden) * sizeof(float);
    states_.drop(static_cast<size_t>(i) * size, size);
}

class DataStage {
public:
    DataStage(Workbench& bench, RunDir& run, std::vector<StageResult>& results, Observer& observer,
              const Cancellation& cancellation)
        : bench_(bench),
          run_(run),
          results_(results),
          observer_(observer),
          cancellation_(cancellation),
          settings_(bench.settings()) {}

    Calibration make() {
        calibration_.chunk_len = settings_.chunk_len;
        calibration_.n_sequences = sequences_per_batch(settings_);
        make_tokens();
        make_states();
        if (!settings_.imatrix.empty()) {
            calibration_.imatrix_path = settings_.imatrix.string();
        } else {
            calibration_.imatrix_path = run_.file(kImatrixFile).string();
        }
        calibration_.imatrix = quant::read_imatrix(calibration_.imatrix_path);
        const auto missing = quant::check_imatrix(calibration_.imatrix, bench_.shapes());
        if (!missing.empty()) {
            observer_.log(LogLevel::warn,
                          fmt::format("{} of {} tensors have no entry in the importance matrix, "
                                      "e.g. {}: they are encoded without",
                                      missing.size(), bench_.tensors().size(), missing.front()));
        }
        return std::move(calibration_);
    }

private:
    // ---- tokens

    std::string tokens_fingerprint() const {
        Sha256 hash;
        hash.update(fmt::format("tokens {} {} {} {} {} {}", bench_.fingerprint(),
                                settings_.n_tokens, settings_.n_valid_tokens, settings_.chunk_len,
                                calibration_.n_sequences,
                                settings_.text.empty() ? settings_.seed : 0));
        for (const auto& path : settings_.text) hash.update(sha256_hex(read_file(path)));
        return hash.hex();
    }

    void make_tokens() {
        const std::string fingerprint = tokens_fingerprint();
        if (const auto record = run_.find_stage("tokens", fingerprint)) {
            const std::string bytes = read_file(run_.file(kTokensFile));
            calibration_.n_train = record->value("n_train_batches", 0);
            calibration_.n_valid = record->value("n_valid_batches", 0);
            calibration_.token_hash = record->value("token_hash", "");
            calibration_.tokens_.resize(bytes.size() / sizeof(int32_t));
            std::memcpy(calibration_.tokens_.data(), bytes.data(),
                        calibration_.tokens_.size() * sizeof(int32_t));
            if (sha256_hex(bytes) == calibration_.token_hash && calibration_.n_train > 0 &&
                calibration_.n_valid > 0) {
                StageTimer::cached("tokens", results_, observer_);
                return;
            }
            observer_.log(LogLevel::warn, "the run's token file is damaged and is made again");
        }
        const int64_t batch = calibration_.batch_tokens();
        calibration_.n_train = static_cast<int>(std::max<int64_t>(1, settings_.n_tokens / batch));
        calibration_.n_valid =
            static_cast<int>(std::max<int64_t>(1, settings_.n_valid_tokens / batch));
        StageTimer timer("tokens", 0, "tokens", observer_);
        const std::vector<int32_t> all = settings_.text.empty() ? generate() : read_text();
        split_off_validation(all);
        const std::string_view bytes(reinterpret_cast<const char*>(calibration_.tokens_.data()),
                                     calibration_.tokens_.size() * sizeof(int32_t));
        calibration_.token_hash = sha256_hex(bytes);
        write_file_atomic(run_.file(kTokensFile), bytes);
        run_.finish_stage(
            "tokens", fingerprint,
            {{"n_train_batches", calibration_.n_train},
             {"n_valid_batches", calibration_.n_valid},
             {"token_hash", calibration_.token_hash},
             {"chunk_len", settings_.chunk_len},
             {"source", settings_.text.empty() ? "generated by the teacher" : "text files"}});
        timer.finish(results_);
    }

    size_t wanted_chunks() const {
        return static_cast<size_t>(calibration_.n_train + calibration_.n_valid) *
               static_cast<size_t>(calibration_.n_sequences);
    }

    std::vector<int32_t> generate() {
        if (!bench_.model().has_tokenizer()) {
            observer_.log(
                LogLevel::info,
                "the model has no tokenizer: calibration documents begin with random tokens");
        }
        model::GenerateOptions options;
        options.n_chunks = static_cast<int32_t>(wanted_chunks());
        options.chunk_len = settings_.chunk_len;
        options.seed = settings_.seed;
        options.n_threads = settings_.n_threads;
        return model::generate(bench_.model(), options, observer_, cancellation_).tokens;
    }

    std::vector<int32_t> read_text() {
        const model::SpecialTokens special = model::special_tokens(bench_.model());
        std::vector<std::vector<int32_t>> chunks;
        for (const auto& path : settings_.text) {
            const std::vector<int32_t> tokens =
                model::tokenize(bench_.model(), model::read_text_file(path));
            const model::TokenChunks cut =
                model::chunk_tokens(special, tokens, settings_.chunk_len);
            for (int32_t i = 0; i < cut.n_chunks(); ++i)
                chunks.emplace_back(cut.chunk(i).begin(), cut.chunk(i).end());
        }
        size_t n = wanted_chunks();
        if (chunks.size() < n) {
            const auto sequences = static_cast<size_t>(calibration_.n_sequences);
            const size_t batches = chunks.size() / sequences;
            if (batches < 2) {
                throw Error(
                    ErrorKind::usage,
                    fmt::format("the text has {} chunks of {} tokens; at least {} are needed",
                                chunks.size(), settings_.chunk_len, 2 * sequences),
                    "", "give more text, or a smaller --chunk-len or --tokens-per-step");
            }
            calibration_.n_valid = std::max(1, static_cast<int>(batches) * calibration_.n_valid /
                                                   (calibration_.n_valid + calibration_.n_train));
            calibration_.n_train = static_cast<int>(batches) - calibration_.n_valid;
            n = batches * sequences;
            observer_.log(LogLevel::warn,
                          fmt::format("the text is shorter than asked for: {} tokens for "
                                      "calibration, {} for validation",
                                      calibration_.n_train * calibration_.batch_tokens(),
                                      calibration_.n_valid * calibration_.batch_tokens()));
        }
        return spread(chunks, n);
    }

    /// Every so many chunks one is set apart, so that validation sees all domains that training
    /// sees.
    void split_off_validation(const std::vector<int32_t>& all) {
        const auto length = static_cast<size_t>(settings_.chunk_len);
        const size_t n = all.size() / length;
        const size_t n_valid = static_cast<size_t>(calibration_.n_valid) *
                               static_cast<size_t>(calibration_.n_sequences);
        std::vector<int32_t> train, valid;
        size_t taken = 0;
        for (size_t i = 0; i < n; ++i) {
            const bool is_valid = (i + 1) * n_valid / n > taken;
            if (is_valid) ++taken;
            auto& part = is_valid ? valid : train;
            part.insert(part.end(), all.begin() + static_cast<std::ptrdiff_t>(i * length),
                        all.begin() + static_cast<std::ptrdiff_t>((i + 1) * length));
        }
        calibration_.tokens_ = std::move(train);
        calibration_.tokens_.insert(calibration_.tokens_.end(), valid.begin(), valid.end());
        VOODOO_CHECK(
            static_cast<int64_t>(calibration_.tokens_.size()) ==
                (calibration_.n_train + calibration_.n_valid) * calibration_.batch_tokens(),
            "{} tokens after the split", calibration_.tokens_.size());
    }

    // ---- states and importance matrix

    void make_states() {
        const std::string fingerprint = sha256_hex(
            fmt::format("states {} {} {} {}", bench_.fingerprint(), calibration_.token_hash,
                        settings_.chunk_len, calibration_.n_train));
        const int n_batches = calibration_.n_train + calibration_.n_valid;
        if (const auto record = run_.find_stage("states", fingerprint)) {
            calibration_.n_hidden = record->value("n_hidden", int64_t{0});
            calibration_.states_ = MappedFile(run_.file(kStatesFile));
            const auto expected = static_cast<uint64_t>(n_batches * calibration_.batch_tokens() *
                                                        calibration_.n_hidden) *
                                  sizeof(float);
            const std::filesystem::path imatrix = run_.file(kImatrixFile);
            const bool is_whole =
                std::filesystem::exists(imatrix) &&
                sha256_hex(read_file(imatrix)) == record->value("imatrix_hash", "");
            if (calibration_.states_.bytes().size() == expected && is_whole) {
                StageTimer::cached("states", results_, observer_);
                return;
            }
        }
        StageTimer timer("states", static_cast<double>(n_batches * calibration_.batch_tokens()),
                         "tokens", observer_);
        engine::ExecutorOptions options;
        options.n_threads = settings_.n_threads;
        options.memory_bytes = bench_.memory_bytes() / 2;
        options.gradients = false;
        options.moments = true;
        engine::Executor executor(
            bench_.capture(calibration_.n_sequences, settings_.chunk_len, false), options);
        calibration_.n_hidden = executor.n_hidden();
        MixedWeights weights(bench_.file(), executor.weights(), bench_.pool());
        MomentSums moments(executor.weights());
        AtomicFile file(run_.file(kStatesFile));
        run_batches(executor, weights, moments, file, timer);
        file.commit();
        write_imatrix(executor, moments);
        calibration_.states_ = MappedFile(run_.file(kStatesFile));
        run_.finish_stage("states", fingerprint,
                          {{"n_hidden", calibration_.n_hidden},
                           {"imatrix_hash", sha256_hex(read_file(run_.file(kImatrixFile)))}});
        timer.finish(results_);
    }

    void run_batches(engine::Executor& executor, MixedWeights& weights, MomentSums& moments,
                     AtomicFile& file, StageTimer& timer) {
        // Several batches share one load of the weights, as many as their hidden states may take.
        const auto border =
            static_cast<uint64_t>(calibration_.batch_tokens() * calibration_.n_hidden) * 2 *
            sizeof(float);
        const int group =
            static_cast<int>(std::clamp<uint64_t>(bench_.memory_bytes() / 8 / border, 1, 64));
        const int n_batches = calibration_.n_train + calibration_.n_valid;
        for (int first = 0, end = 0; first < n_batches; first = end) {
            // A group never mixes training and validation: only the former counts for the
            // importance matrix.
            const bool is_train = first < calibration_.n_train;
            end = std::min(first + group, is_train ? calibration_.n_train : n_batches);
            std::vector<std::span<const int32_t>> batches;
            for (int b = first; b < end; ++b) batches.push_back(calibration_.batch(b));
            executor.forward(
                batches, weights, is_train ? &moments : nullptr,
                [&](int, std::span<const float> hidden) {
                    file.write(hidden.data(), hidden.size_bytes());
                    if (is_train) moments.add(executor.head_weight(), hidden);
                },
                &cancellation_);
            timer.progress(static_cast<double>(end * calibration_.batch_tokens()));
        }
    }

    void write_imatrix(const engine::Executor& executor, const MomentSums& moments) {
        quant::Imatrix imatrix;
        imatrix.chunk_size = static_cast<uint32_t>(settings_.chunk_len);
        imatrix.chunk_count =
            static_cast<uint32_t>(calibration_.n_train * calibration_.n_sequences);
        imatrix.datasets = {settings_.text.empty() ? "generated by the model"
                                                   : settings_.text.front().filename().string()};
        for (size_t i = 0; i < executor.weights().size(); ++i) {
            const int index = static_cast<int>(i);
            if (moments.is_empty(index)) continue;
            quant::ImatrixEntry entry;
            for (const double sum : moments.sums(index))
                entry.sums.push_back(static_cast<float>(sum));
            entry.counts = moments.counts(index);
            imatrix.entries.emplace(executor.weights()[i].name, std::move(entry));
        }
        quant::write_imatrix(imatrix, run_.file(kImatrixFile));
    }

    Workbench& bench_;
    RunDir& run_;
    std::vector<StageResult>& results_;
    Observer& observer_;
    const Cancellation& cancellation_;
    const Settings& settings_;
    Calibration calibration_;
};

Calibration prepare_calibration(Workbench& bench, RunDir& run, std::vector<StageResult>& results,
                                Observer& observer, const Cancellation& cancellation) {
    return DataStage(bench, run, results, observer, cancellation).make();
}

}  // namespace voodoo::pipeline
