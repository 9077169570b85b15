#include "pipeline/train.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "pipeline/stage_timer.h"

namespace voodoo::pipeline {
namespace {

constexpr const char* kGatesFile = "gates.json";
/// How undecided gates are that start from costs: mean entropy over tensors, nats.
constexpr double kStartEntropy = 0.5;

engine::ExecutorOptions tail_options(const Workbench& bench) {
    engine::ExecutorOptions options;
    options.n_threads = bench.settings().n_threads;
    options.gradients = false;
    return options;
}

class Trainer {
public:
    Trainer(Workbench& bench, const Calibration& calibration, Candidates& candidates,
            const CandidateTypes& types, Teacher& teacher, RunDir& run, Observer& observer,
            const Cancellation& cancellation)
        : bench_(bench),
          calibration_(calibration),
          teacher_(teacher),
          run_(run),
          observer_(observer),
          cancellation_(cancellation),
          executor_(bench.capture(calibration.n_sequences, calibration.chunk_len, true),
                    gradient_options(bench)),
          weights_(bench.file(), executor_.weights(), bench.pool()),
          sink_(executor_.weights(), bench.pool().size()) {
        for (size_t t = 0; t < types.size(); ++t) {
            std::vector<quant::CandidateView> views;
            for (const Candidate& c : types[t]) {
                held_.push_back(candidates.encoded(t, c.type));
                views.push_back(held_.back().view());
            }
            const int index = executor_.find_weight(bench.tensors()[t].name);
            indices_.push_back(index);
            if (index >= 0) sink_.set(index, views);
            views_.push_back(std::move(views));
        }
    }

    void run(search::Gates& gates, StageTimer& timer) {
        const std::vector<int> order =
            shuffled_indices(calibration_.n_train, bench_.settings().seed, "epoch");
        while (!gates.finished()) {
            const int batch = order[static_cast<size_t>(gates.step_index()) % order.size()];
            step(gates, batch);
            const search::GateRecord& record = gates.history().back();
            timer.progress(
                static_cast<double>(gates.step_index()),
                fmt::format("KL {:.4f} CE {:.3f} tau {:.2f} size {:.1f} MB", record.loss.kl,
                            record.loss.ce, record.tau, record.expected_bytes / 1e6));
            write_file_atomic(run_.file(kGatesFile), gates.serialize());
        }
    }

private:
    void step(search::Gates& gates, int batch) {
        for (size_t t = 0; t < views_.size(); ++t) {
            const std::vector<double> p = gates.probabilities(t);
            weights_.set(bench_.tensors()[t].name,
                         {views_[t], std::vector<float>(p.begin(), p.end())});
        }
        sink_.clear();
        const std::span<const int32_t> tokens[] = {calibration_.batch(batch)};
        const engine::LossWeights loss_weights{gates.options().ce_weight,
                                               gates.options().lambda_kl};
        engine::DistillationLoss loss(tokens, calibration_.n_sequences, executor_.n_vocab(),
                                      loss_weights, teacher_.logits(batch), bench_.pool());
        executor_.step(tokens, weights_, loss, sink_, &cancellation_);
        std::vector<std::vector<double>> contractions;
        for (size_t t = 0; t < views_.size(); ++t) {
            contractions.push_back(indices_[t] >= 0 ? sink_.contraction(indices_[t])
                                                    : std::vector<double>(views_[t].size(), 0.0));
        }
        const search::GateStepResult result =
            gates.step(contractions, {loss.sums().mean_cross_entropy(), loss.sums().mean_kl()});
        if (!result.applied()) {
            observer_.log(LogLevel::warn,
                          fmt::format("step {} was not finite and is left out, first at {}",
                                      gates.step_index(), result.non_finite.front()));
        }
    }

    Workbench& bench_;
    const Calibration& calibration_;
    Teacher& teacher_;
    RunDir& run_;
    Observer& observer_;
    const Cancellation& cancellation_;
    engine::Executor executor_;
    MixedWeights weights_;
    ContractSink sink_;
    std::vector<quant::StoredCandidate> held_;
    std::vector<std::vector<quant::CandidateView>> views_;  // by tensor
    std::vector<int> indices_;  // weight of each tensor in the graph, or -1
};

search::Gates make_gates(const Workbench& bench, const Calibration& calibration,
                         const CandidateTypes& types,
                         const std::vector<std::vector<double>>& costs) {
    std::vector<search::GateTensor> tensors;
    for (size_t t = 0; t < types.size(); ++t) {
        search::GateTensor tensor{bench.tensors()[t].name, type_names(types[t]), {}};
        for (const Candidate& c : types[t]) tensor.bytes.push_back(static_cast<double>(c.bytes));
        if (!costs.empty()) tensor.cost = costs[t];
        tensors.push_back(std::move(tensor));
    }
    search::GateOptions options = bench.settings().gates;
    options.n_steps = calibration.n_train;
    // The costs are of KL alone.
    if (!costs.empty()) options.ce_weight = 0.0;
    search::Gates gates(std::move(tensors), static_cast<double>(bench.fixed_bytes()),
                        static_cast<double>(bench.target_bytes()), options);
    if (costs.empty()) {
        gates.init_at_target();
    } else {
        gates.init_at_costs(kStartEntropy);
    }
    return gates;
}

/// The gates of a run that has begun; nothing if the file is absent or damaged.
std::optional<search::Gates> find_gates(const RunDir& run, Observer& observer) {
    if (!std::filesystem::exists(run.file(kGatesFile))) return std::nullopt;
    try {
        return search::Gates::deserialize(read_file(run.file(kGatesFile)));
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_file) throw;
        observer.log(
            LogLevel::warn,
            fmt::format("the run's gates are damaged and trained again: {}", error.message()));
        return std::nullopt;
    }
}

}  // namespace

Teacher::Teacher(Workbench& bench, const Calibration& calibration)
    : calibration_(calibration),
      executor_(bench.capture(calibration.n_sequences, calibration.chunk_len, false),
                tail_options(bench)),
      weights_(bench.file(), executor_.weights(), bench.pool()) {
    if (!executor_.tail_is_row_wise()) {
        throw Error(ErrorKind::unsupported_model, "the model's head is not applied token by token",
                    bench.settings().model.string());
    }
    executor_.load_tail(weights_);
}

engine::TeacherLogits Teacher::logits(int first_batch) {
    return [this, first_batch](int batch, int64_t first, int64_t n) {
        const auto states = calibration_.states(first_batch + batch);
        return executor_.tail_slice(
            states.subspan(static_cast<size_t>(first * calibration_.n_hidden),
                           static_cast<size_t>(n * calibration_.n_hidden)));
    };
}

engine::TeacherLogits Teacher::chunk_logits(std::vector<int> chunks) {
    return [this, chunks = std::move(chunks)](int batch, int64_t first, int64_t n) {
        const auto states = calibration_.chunk_states(chunks[static_cast<size_t>(batch)]);
        return logits_of(states.subspan(static_cast<size_t>(first * calibration_.n_hidden),
                                        static_cast<size_t>(n * calibration_.n_hidden)));
    };
}

std::span<const float> Teacher::logits_of(std::span<const float> states) {
    const auto slice = static_cast<size_t>(executor_.slice_length() * calibration_.n_hidden);
    if (states.size() == slice) return executor_.tail_slice(states);
    const auto n_hidden = static_cast<size_t>(calibration_.n_hidden);
    const auto n_vocab = static_cast<size_t>(executor_.n_vocab());
    logits_.clear();
    for (size_t first = 0; first < states.size(); first += slice) {
        const auto part = states.subspan(first, std::min(slice, states.size() - first));
        padded_.assign(slice, 0.0F);
        std::copy(part.begin(), part.end(), padded_.begin());
        const auto logits = executor_.tail_slice(padded_).first(part.size() / n_hidden * n_vocab);
        logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
    return logits_;
}

search::Gates train_gates(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                          const CandidateTypes& types,
                          const std::vector<std::vector<double>>& costs, Teacher& teacher,
                          RunDir& run, std::vector<StageResult>& results, Observer& observer,
                          const Cancellation& cancellation) {
    search::Gates gates = make_gates(bench, calibration, types, costs);
    // The untrained state says which tensors, types, sizes and options the gates have.
    const std::string fingerprint = sha256_hex(
        fmt::format("train {} {} {} {} {}", bench.fingerprint(), calibration.token_hash,
                    gates.serialize(), bench.settings().seed, bench.encoder().identity()));
    std::optional<search::Gates> saved;
    if (run.find_stage("train-begun", fingerprint)) saved = find_gates(run, observer);
    if (saved && saved->finished() && run.find_stage("train", fingerprint)) {
        StageTimer::cached("train", results, observer);
        return *std::move(saved);
    }
    if (saved) {
        gates = *std::move(saved);
        observer.log(LogLevel::info, fmt::format("training goes on at step {} of {}",
                                                 gates.step_index(), gates.options().n_steps));
    } else {
        std::filesystem::remove(run.file(kGatesFile));
        run.finish_stage("train-begun", fingerprint, {});
    }
    StageTimer timer("train", static_cast<double>(gates.options().n_steps), "steps", observer);
    Trainer(bench, calibration, candidates, types, teacher, run, observer, cancellation)
        .run(gates, timer);
    run.finish_stage("train", fingerprint, {{"steps", gates.step_index()}});
    timer.finish(results);
    return gates;
}

Validator::Validator(Workbench& bench, const Calibration& calibration, Teacher& teacher)
    : bench_(bench),
      calibration_(calibration),
      teacher_(teacher),
      executor_(bench.capture(calibration.n_sequences, calibration.chunk_len, false), [&] {
          engine::ExecutorOptions options = gradient_options(bench);
          options.gradients = false;
          return options;
      }()) {}

std::vector<float> Validator::token_kl(const FinalWeights& final,
                                       const Cancellation& cancellation) {
    MixedWeights weights(bench_.file(), executor_.weights(), bench_.pool());
    use_final(final, bench_, weights);
    std::vector<std::span<const int32_t>> batches;
    batches.reserve(static_cast<size_t>(calibration_.n_valid));
    for (int b = 0; b < calibration_.n_valid; ++b)
        batches.push_back(calibration_.batch(calibration_.n_train + b));
    std::vector<std::vector<float>> hidden(batches.size());
    executor_.forward(
        batches, weights, nullptr,
        [&](int b, std::span<const float> h) {
            hidden[static_cast<size_t>(b)].assign(h.begin(), h.end());
        },
        &cancellation);
    engine::DistillationLoss loss(batches, calibration_.n_sequences, executor_.n_vocab(),
                                  {0.0, 1.0}, teacher_.logits(calibration_.n_train), bench_.pool());
    executor_.logits(
        static_cast<int>(batches.size()), weights,
        [&](int b) { return std::span<const float>(hidden[static_cast<size_t>(b)]); }, loss,
        &cancellation);
    return loss.token_kl();
}

}  // namespace voodoo::pipeline
