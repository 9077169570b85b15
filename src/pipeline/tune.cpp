#include "pipeline/tune.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "engine/audit.h"
#include "pipeline/stage_timer.h"

namespace voodoo::pipeline {
namespace {

constexpr const char* kStateFile = "tuning.bin";
constexpr int64_t kStepsBetweenSaves = 5;

bool is_bias(const std::string& name) {
    // Attention sinks are logits.
    return name.ends_with(".bias") || name.find("sinks") != std::string::npos;
}

bool is_tunable_kind(const Workbench& bench, const std::string& name) {
    const gguf::TensorInfo* tensor = bench.file().find_tensor(name);
    if (tensor == nullptr || tensor->type != GGML_TYPE_F32 || bench.find_tensor(name) >= 0)
        return false;
    return tensor->n_rows() == 1 || is_bias(name) || name.find("norm") != std::string::npos;
}

std::vector<float> values_of(const Workbench& bench, const FinalWeights& weights,
                             const std::string& name) {
    if (const auto found = weights.tuned.find(name); found != weights.tuned.end())
        return found->second;
    const gguf::TensorInfo& tensor = *bench.file().find_tensor(name);
    std::vector<float> values(static_cast<size_t>(tensor.n_elements()));
    std::memcpy(values.data(), bench.file().data(tensor).data(), values.size() * sizeof(float));
    return values;
}

/// dL/dW of the tuned weights, summed over all calls.
class GradientSums : public engine::GradientSink {
public:
    /// indices: weight of each tensor.
    GradientSums(const std::vector<engine::WeightInfo>& weights, const std::vector<int>& indices)
        : weights_(weights), tensor_(weights.size(), -1) {
        for (size_t t = 0; t < indices.size(); ++t) {
            const auto i = static_cast<size_t>(indices[t]);
            tensor_[i] = static_cast<int>(t);
            sums_.emplace_back(static_cast<size_t>(weights[i].n_elements()), 0.0);
        }
    }
    void clear() {
        for (auto& row : sums_) std::fill(row.begin(), row.end(), 0.0);
    }
    void take(int index, const float* dw, int64_t first_row, int64_t n_rows, int) override {
        const int t = tensor_[static_cast<size_t>(index)];
        if (t < 0) return;
        const int64_t n_per_row = weights_[static_cast<size_t>(index)].ne[0];
        double* sums = sums_[static_cast<size_t>(t)].data() + first_row * n_per_row;
        for (int64_t i = 0; i < n_rows * n_per_row; ++i) sums[i] += static_cast<double>(dw[i]);
    }
    const std::vector<std::vector<double>>& sums() const { return sums_; }

private:
    const std::vector<engine::WeightInfo>& weights_;
    std::vector<int> tensor_;  // by weight: index into sums_, or -1
    std::vector<std::vector<double>> sums_;
};

size_t chunks_per_step(const Settings& settings) {
    return static_cast<size_t>(
        std::max<int64_t>(1, settings.tune_tokens_per_step / settings.chunk_len));
}

/// The student, whose encoded tensors stay as they are, and what it is trained and measured with.
class Tuner {
public:
    Tuner(Workbench& bench, const Calibration& calibration, const FinalWeights& final,
          graph::Graph graph, const search::Tuning& tuning, Teacher& teacher,
          const Cancellation& cancellation)
        : bench_(bench),
          calibration_(calibration),
          teacher_(teacher),
          cancellation_(cancellation),
          order_(shuffled_indices(calibration.n_train_chunks(), bench.settings().seed, "tune")),
          executor_(std::move(graph), executor_options(tuning)),
          weights_(bench.file(), executor_.weights(), bench.pool()),
          sums_(executor_.weights(), indices(tuning)) {
        use_final(final, bench, weights_);
    }

    /// Mean KL of each validation chunk.
    std::vector<double> validate(const search::Tuning& tuning) {
        set_values(tuning);
        std::vector<int> chunks;
        for (int c = 0; c < calibration_.n_valid_chunks(); ++c)
            chunks.push_back(calibration_.n_train_chunks() + c);
        const auto batches = tokens_of(chunks);
        std::vector<std::vector<float>> hidden(batches.size());
        executor_.forward(
            batches, weights_, nullptr,
            [&](int b, std::span<const float> h) {
                hidden[static_cast<size_t>(b)].assign(h.begin(), h.end());
            },
            &cancellation_);
        engine::DistillationLoss loss(batches, 1, executor_.n_vocab(), {0.0, 1.0},
                                      teacher_.chunk_logits(chunks), bench_.pool());
        executor_.logits(
            static_cast<int>(batches.size()), weights_,
            [&](int b) { return std::span<const float>(hidden[static_cast<size_t>(b)]); }, loss,
            &cancellation_);
        const std::vector<double> kl(loss.token_kl().begin(), loss.token_kl().end());
        return search::chunk_means(kl, static_cast<size_t>(calibration_.chunk_len));
    }

    /// One step; returns the mean KL before it and whether it was finite.
    std::pair<double, bool> step(search::Tuning& tuning) {
        set_values(tuning);
        const size_t n = chunks_per_step(bench_.settings());
        std::vector<int> chunks;
        for (size_t i = 0; i < n; ++i)
            chunks.push_back(
                order_[(static_cast<size_t>(tuning.step_index()) * n + i) % order_.size()]);
        const auto batches = tokens_of(chunks);
        engine::DistillationLoss loss(batches, 1, executor_.n_vocab(), {0.0, 1.0},
                                      teacher_.chunk_logits(chunks), bench_.pool());
        sums_.clear();
        executor_.step(batches, weights_, loss, sums_, &cancellation_);
        const bool finite = tuning.step(sums_.sums());
        return {loss.sums().mean_kl(), finite};
    }

private:
    engine::ExecutorOptions executor_options(const search::Tuning& tuning) const {
        engine::ExecutorOptions options;
        options.n_threads = bench_.settings().n_threads;
        options.memory_bytes = bench_.memory_bytes() / 2;
        options.wants_gradient = [&tuning](const engine::WeightInfo& info) {
            return std::any_of(tuning.tensors().begin(), tuning.tensors().end(),
                               [&](const auto& tensor) { return tensor.name == info.name; });
        };
        return options;
    }

    std::vector<int> indices(const search::Tuning& tuning) const {
        std::vector<int> indices;
        for (const search::TuningTensor& tensor : tuning.tensors())
            indices.push_back(executor_.find_weight(tensor.name));
        return indices;
    }

    void set_values(const search::Tuning& tuning) {
        for (size_t t = 0; t < tuning.tensors().size(); ++t)
            weights_.set_values(tuning.tensors()[t].name, tuning.values(t));
    }

    std::vector<std::span<const int32_t>> tokens_of(const std::vector<int>& chunks) const {
        std::vector<std::span<const int32_t>> batches;
        for (const int c : chunks) batches.push_back(calibration_.chunk(c));
        return batches;
    }

    Workbench& bench_;
    const Calibration& calibration_;
    Teacher& teacher_;
    const Cancellation& cancellation_;
    std::vector<int> order_;
    engine::Executor executor_;
    MixedWeights weights_;
    GradientSums sums_;
};

search::Tuning make_tuning(const Workbench& bench, const Calibration& calibration,
                           std::vector<search::TuningTensor> tensors) {
    search::TuningOptions options = bench.settings().tuning;
    const auto epoch = static_cast<int64_t>(static_cast<size_t>(calibration.n_train_chunks()) /
                                            chunks_per_step(bench.settings()));
    options.n_steps = std::min(options.n_steps, std::max<int64_t>(1, epoch));
    return {std::move(tensors), options};
}

/// Everything that determines the outcome: model, tokens, encoded bytes, options.
std::string fingerprint_of(const Workbench& bench, const Calibration& calibration,
                           const FinalWeights& weights, const search::Tuning& tuning) {
    const search::TuningOptions& o = tuning.options();
    Sha256 hash;
    hash.update(fmt::format(
        "tune {} {} {} {} {} {} {} {} {} {} {} {} {}", bench.fingerprint(), calibration.token_hash,
        bench.settings().seed, chunks_per_step(bench.settings()), o.n_steps, o.lr, o.lr_end_ratio,
        o.warmup_share, o.beta1, o.beta2, o.epsilon, o.n_checks, weights.tensors.size()));
    for (const quant::StoredCandidate& tensor : weights.tensors) {
        hash.update(tensor.bytes().data(), tensor.bytes().size());
        tensor.drop();
    }
    for (const search::TuningTensor& tensor : tuning.tensors()) {
        hash.update(fmt::format("{} {};", tensor.name, static_cast<int>(tensor.form)));
        hash.update(tensor.source.data(), tensor.source.size() * sizeof(float));
    }
    return hash.hex();
}

/// Goes on from the state that the run has, if there is one.
void restore(search::Tuning& tuning, const RunDir& run, Observer& observer) {
    if (!std::filesystem::exists(run.file(kStateFile))) return;
    try {
        tuning.restore(read_file(run.file(kStateFile)));
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_file) throw;
        observer.log(LogLevel::warn, fmt::format("the run's tuning is damaged and begins again: {}",
                                                 error.message()));
    }
}

void tune_all(Tuner& tuner, search::Tuning& tuning, RunDir& run, StageTimer& timer,
              Observer& observer) {
    while (!tuning.finished()) {
        if (tuning.check_due()) {
            tuning.check(tuner.validate(tuning));
            const search::TuningCheck& check = tuning.checks().back();
            observer.log(LogLevel::debug, fmt::format("tuning, {} steps: validation KL {:.5f}",
                                                      check.step, check.mean()));
            write_file_atomic(run.file(kStateFile), tuning.serialize());
            continue;
        }
        const auto [kl, finite] = tuner.step(tuning);
        if (!finite) {
            observer.log(LogLevel::warn, fmt::format("step {} was not finite and is left out",
                                                     tuning.step_index()));
        }
        if (tuning.step_index() % kStepsBetweenSaves == 0)
            write_file_atomic(run.file(kStateFile), tuning.serialize());
        timer.progress(
            static_cast<double>(tuning.step_index()),
            fmt::format("KL {:.4f}, validation {:.4f} -> {:.4f}", kl,
                        tuning.checks().front().mean(), tuning.checks()[tuning.best()].mean()));
    }
}

/// Fills in weights.tuned if that pays, and says what came of it.
TuneResult apply(const search::Tuning& tuning, FinalWeights& weights, Observer& observer) {
    TuneResult result;
    result.n_tensors = tuning.tensors().size();
    result.n_parameters = tuning.n_parameters();
    result.n_steps = tuning.checks()[tuning.best()].step;
    result.validation = tuning.gain();
    result.applied = tuning.accepted();
    const search::PairedComparison& gain = result.validation;
    const std::string figures = fmt::format(
        "validation KL {:.5f} -> {:.5f} ({:+.5f} +- {:.5f}) after {} of {} steps over {} "
        "parameters",
        gain.mean_b, gain.mean_a, gain.mean_difference, gain.standard_error, result.n_steps,
        tuning.options().n_steps, result.n_parameters);
    if (!result.applied) {
        observer.log(LogLevel::warn,
                     fmt::format("norms and biases stay as they were, their tuning did not pay by "
                                 "more than one standard error: {}",
                                 figures));
        return result;
    }
    observer.log(LogLevel::info, fmt::format("norms and biases tuned: {}", figures));
    for (size_t t = 0; t < tuning.tensors().size(); ++t)
        weights.tuned[tuning.tensors()[t].name] = tuning.best_values(t);
    return result;
}

}  // namespace

std::vector<search::TuningTensor> tunable_tensors(const Workbench& bench,
                                                  const FinalWeights& weights,
                                                  const graph::Graph& graph, Observer& observer) {
    std::vector<search::TuningTensor> tensors;
    for (const graph::ValueId id : graph.weights()) {
        const graph::Value& value = graph[id];
        if (!is_tunable_kind(bench, value.name)) continue;
        const bool bias = is_bias(value.name);
        search::TuningTensor tensor{
            value.name, bias ? search::TuningForm::added : search::TuningForm::multiplied,
            values_of(bench, weights, value.name)};
        // Zeros have no scale to move by; what is not finite (a mask) is no parameter.
        const bool moves = std::any_of(tensor.source.begin(), tensor.source.end(),
                                       [](float w) { return w != 0.0F; }) &&
                           std::all_of(tensor.source.begin(), tensor.source.end(),
                                       [](float w) { return std::isfinite(w); });
        if (moves) tensors.push_back(std::move(tensor));
    }
    const auto audit = [&](const auto& wanted) { return engine::audit(graph, wanted); };
    const auto is_listed = [&](const std::string& name) {
        return std::any_of(tensors.begin(), tensors.end(),
                           [&](const auto& tensor) { return tensor.name == name; });
    };
    if (audit(is_listed).empty()) return tensors;
    // Some op stops the gradient of some of them (rope's frequency factors, for one).
    std::erase_if(tensors, [&](const search::TuningTensor& tensor) {
        const auto missing = audit([&](const std::string& name) { return name == tensor.name; });
        if (missing.empty()) return false;
        observer.log(LogLevel::debug,
                     fmt::format("{} is not tuned: {}", tensor.name, engine::describe(missing)));
        return true;
    });
    return tensors;
}

TuneResult tune_scales(Workbench& bench, const Calibration& calibration, FinalWeights& weights,
                       Teacher& teacher, RunDir& run, std::vector<StageResult>& results,
                       Observer& observer, const Cancellation& cancellation) {
    if (bench.settings().tune == TuneMethod::none) return {};
    graph::Graph graph = bench.capture(1, calibration.chunk_len, false);
    search::Tuning tuning =
        make_tuning(bench, calibration, tunable_tensors(bench, weights, graph, observer));
    if (tuning.n_parameters() == 0) {
        observer.log(LogLevel::info, "the model has no norms or biases that could be tuned");
        return {};
    }
    const std::string fingerprint = fingerprint_of(bench, calibration, weights, tuning);
    const bool begun = run.find_stage("tune-begun", fingerprint).has_value();
    if (begun) restore(tuning, run, observer);
    if (tuning.finished() && run.find_stage("tune", fingerprint)) {
        StageTimer::cached("tune", results, observer);
        return apply(tuning, weights, observer);
    }
    if (!begun) {
        std::filesystem::remove(run.file(kStateFile));
        run.finish_stage("tune-begun", fingerprint, {});
    } else if (tuning.step_index() > 0) {
        observer.log(LogLevel::info, fmt::format("tuning goes on at step {} of {}",
                                                 tuning.step_index(), tuning.options().n_steps));
    }
    StageTimer timer("tune", static_cast<double>(tuning.options().n_steps), "steps", observer);
    {
        Tuner tuner(bench, calibration, weights, std::move(graph), tuning, teacher, cancellation);
        tune_all(tuner, tuning, run, timer, observer);
    }
    const TuneResult result = apply(tuning, weights, observer);
    run.finish_stage("tune", fingerprint,
                     {{"applied", result.applied},
                      {"steps", result.n_steps},
                      {"parameters", result.n_parameters},
                      {"kl_before", result.validation.mean_b},
                      {"kl_after", result.validation.mean_a},
                      {"standard_error", result.validation.standard_error}});
    timer.finish(results);
    return result;
}

}  // namespace voodoo::pipeline
