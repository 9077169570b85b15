#include "pipeline/score.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "engine/fisher.h"
#include "pipeline/row_costs.h"
#include "pipeline/stage_timer.h"
#include "pipeline/weights.h"

namespace voodoo::pipeline {
namespace {

constexpr const char* kStateFile = "scores.bin";
/// Before this many chunks the halves may agree by chance.
constexpr int kMinChunks = 4;
constexpr int kChunksBetweenChecks = 2;

std::vector<ggml_type> types_of(const std::vector<Candidate>& candidates) {
    std::vector<ggml_type> types;
    types.reserve(candidates.size());
    for (const Candidate& c : candidates) types.push_back(c.type);
    return types;
}

/// Squared norm of each row of the source.
std::vector<float> squared_norms(Workbench& bench, const Tensor& tensor) {
    const int64_t n = tensor.shape.n_per_row;
    const std::byte* data = bench.file().data(*tensor.info).data();
    const uint64_t row_bytes = quant::row_bytes(tensor.info->type, n);
    std::vector<float> norms(static_cast<size_t>(tensor.shape.total_rows()));
    bench.pool().parallel_for(tensor.shape.total_rows(), 64, [&](int64_t begin, int64_t end, int) {
        std::vector<float> row(static_cast<size_t>(n));
        for (int64_t r = begin; r < end; ++r) {
            quant::to_float(tensor.info->type, data + static_cast<uint64_t>(r) * row_bytes,
                            row.data(), n);
            float sum = 0.0F;
            for (const float x : row) sum += x * x;
            norms[static_cast<size_t>(r)] = sum;
        }
    });
    return norms;
}

class Scorer {
public:
    Scorer(Workbench& bench, const Calibration& calibration, Candidates& candidates,
           const CandidateTypes& types, Observer& observer, const Cancellation& cancellation)
        : bench_(bench),
          calibration_(calibration),
          types_(types),
          observer_(observer),
          cancellation_(cancellation),
          order_(shuffled_indices(calibration.n_train_chunks(), bench.settings().seed, "score")),
          executor_(bench.capture(1, calibration.chunk_len, true), gradient_options(bench)),
          weights_(bench.file(), executor_.weights(), bench.pool()),
          sink_(executor_.weights(), bench.pool().size()) {
        std::vector<search::SampledRows> shapes;
        for (size_t t = 0; t < types.size(); ++t) {
            const Tensor& tensor = bench.tensors()[t];
            const int index = executor_.find_weight(tensor.name);
            if (index < 0) continue;
            const EncodedSample& sample = candidates.sample(t, types_of(types[t]));
            sink_.set(index, scored_.size(), sample, types_of(types[t]),
                      squared_norms(bench, tensor));
            shapes.push_back({types[t].size(), tensor.shape.total_rows(), sample.rows.certain});
            scored_.push_back(t);
        }
        sensitivity_.emplace(std::move(shapes), calibration.chunk_len - skip());
    }

    search::Sensitivity& sensitivity() { return *sensitivity_; }

    void add_chunk() {
        const int chunk = order_[static_cast<size_t>(chunks_run())];
        const std::span<const int32_t> tokens[] = {calibration_.chunk(chunk)};
        engine::FisherProbe probe(executor_.n_vocab(), skip(), bench_.settings().seed,
                                  static_cast<uint64_t>(chunk), bench_.pool());
        sink_.clear();
        executor_.step(tokens, weights_, probe, sink_, &cancellation_);
        sink_.finish(bench_.pool());
        const bool taken =
            probe.finite() ? sensitivity_->add(sink_.chunk()) : sensitivity_->leave_out();
        if (!taken)
            observer_.log(LogLevel::warn,
                          fmt::format("chunk {} was not finite and is left out", chunk));
    }
    int chunks_run() const { return sensitivity_->n_chunks() + sensitivity_->n_left_out(); }
    int n_chunks_available() const { return static_cast<int>(order_.size()); }

    /// By index in types; tensors that are not scored get zeros.
    std::vector<std::vector<double>> spread(const std::vector<std::vector<double>>& scored) const {
        std::vector<std::vector<double>> all;
        for (const auto& row : types_) all.emplace_back(row.size(), 0.0);
        for (size_t i = 0; i < scored_.size(); ++i) all[scored_[i]] = scored[i];
        return all;
    }
    const std::vector<size_t>& scored() const { return scored_; }

    /// search::plan_disagreement at the settings' size; nothing before there are enough chunks.
    /// Depends on the state alone, so that a run that was killed stops where it would have.
    std::optional<double> disagreement() const {
        const int n = chunks_run();
        if (n < kMinChunks || n % kChunksBetweenChecks != 0) return std::nullopt;
        return search::plan_disagreement(*sensitivity_, [&](const auto& cost) {
            const auto solution =
                budget_solver(bench_, types_, spread(cost)).solve(bench_.target_bytes());
            std::vector<size_t> choice;
            for (const size_t t : scored_) choice.push_back(solution.choice[t]);
            return choice;
        });
    }

private:
    /// Positions with little context: not scored.
    int64_t skip() const { return calibration_.chunk_len / 4; }

    Workbench& bench_;
    const Calibration& calibration_;
    const CandidateTypes& types_;
    Observer& observer_;
    const Cancellation& cancellation_;
    std::vector<int> order_;  // of the training chunks
    engine::Executor executor_;
    MixedWeights weights_;
    RowCostSink sink_;
    std::vector<size_t> scored_;  // tensors with a gradient
    std::optional<search::Sensitivity> sensitivity_;
};

std::string fingerprint_of(const Workbench& bench, const Calibration& calibration,
                           const CandidateTypes& types) {
    Sha256 hash;
    hash.update(fmt::format("score {} {} {} {}", bench.fingerprint(), calibration.token_hash,
                            bench.settings().seed, bench.encoder().identity()));
    hash.update(sha256_hex(read_file(calibration.imatrix_path)));
    for (const auto& tensor : types)
        hash.update(fmt::format("{};", fmt::join(type_names(tensor), " ")));
    return hash.hex();
}

/// Tensors that no gradient reaches (looked up by nothing, or behind a selection such as the scores
/// of a sparse attention's indexer) can't be priced by their effect. They are priced by their
/// relative error, as the average weight of all other tensors is, and named.
void price_unreached(const Workbench& bench, const CandidateTypes& types,
                     const std::vector<size_t>& scored, Scores& scores, Observer& observer) {
    const auto weighted_error = [&](size_t t, size_t k) {
        return types[t][k].sample_error *
               static_cast<double>(bench.tensors()[t].shape.n_elements());
    };
    std::vector<size_t> unreached;
    double cost = 0.0, error = 0.0;
    for (size_t t = 0; t < types.size(); ++t) {
        const bool is_scored = std::binary_search(scored.begin(), scored.end(), t);
        const double sum = std::accumulate(scores.cost[t].begin(), scores.cost[t].end(), 0.0);
        double errors = 0.0;
        for (size_t k = 0; k < types[t].size(); ++k) errors += weighted_error(t, k);
        if (!is_scored || (sum == 0.0 && errors > 0.0)) {
            unreached.push_back(t);
        } else {
            cost += sum;
            error += errors;
        }
    }
    if (unreached.empty()) return;
    std::vector<std::string> names;
    for (const size_t t : unreached) {
        names.push_back(bench.tensors()[t].name);
        for (size_t k = 0; k < types[t].size(); ++k)
            scores.cost[t][k] =
                error > 0.0 ? cost / error * weighted_error(t, k) : weighted_error(t, k);
    }
    observer.log(LogLevel::warn, fmt::format("no gradient reaches {}: priced by their error alone",
                                             fmt::join(names, ", ")));
}

Scores from_record(const nlohmann::json& record) {
    return {record.at("cost").get<std::vector<std::vector<double>>>(),
            record.at("error").get<std::vector<std::vector<double>>>(),
            record.at("n_chunks").get<int>()};
}

/// Goes on from a state that a killed run has left.
void restore(Scorer& scorer, const RunDir& run, const std::string& fingerprint,
             Observer& observer) {
    const auto begun = run.find_stage("score-begun", fingerprint);
    if (!begun || !std::filesystem::exists(run.file(kStateFile))) return;
    try {
        scorer.sensitivity().restore(read_file(run.file(kStateFile)));
        observer.log(LogLevel::info,
                     fmt::format("scoring goes on after {} chunks", scorer.chunks_run()));
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_file) throw;
        observer.log(
            LogLevel::warn,
            fmt::format("the run's scores are damaged and measured again: {}", error.message()));
    }
}

}  // namespace

search::BudgetSolver budget_solver(const Workbench& bench, const CandidateTypes& types,
                                   const std::vector<std::vector<double>>& values) {
    search::BudgetProblem problem;
    problem.fixed_bytes = bench.fixed_bytes();
    for (size_t t = 0; t < types.size(); ++t) {
        search::BudgetGroup group;
        group.name = bench.tensors()[t].name;
        for (size_t k = 0; k < types[t].size(); ++k) {
            group.items.push_back({types[t][k].bytes, values[t][k],
                                   std::string(quant::type_info(types[t][k].type).name)});
        }
        problem.groups.push_back(std::move(group));
    }
    return search::BudgetSolver(std::move(problem));
}

Scores measure_scores(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                      const CandidateTypes& types, RunDir& run, std::vector<StageResult>& results,
                      Observer& observer, const Cancellation& cancellation) {
    const std::string fingerprint =
        fmt::format("{} {} {}", fingerprint_of(bench, calibration, types),
                    bench.settings().score_chunks, bench.settings().score_tolerance);
    if (const auto record = run.find_stage("score", fingerprint)) {
        StageTimer::cached("score", results, observer);
        return from_record(*record);
    }
    const int limit = static_cast<int>(bench.settings().score_chunks);
    StageTimer timer("score", limit, "chunks", observer);
    Scorer scorer(bench, calibration, candidates, types, observer, cancellation);
    restore(scorer, run, fingerprint, observer);
    run.finish_stage("score-begun", fingerprint, {});
    const int n_max = std::min(limit, scorer.n_chunks_available());
    std::optional<double> disagreement = scorer.disagreement();
    const double tolerance = bench.settings().score_tolerance;
    while (scorer.chunks_run() < n_max && !(disagreement && *disagreement < tolerance)) {
        scorer.add_chunk();
        write_file_atomic(run.file(kStateFile), scorer.sensitivity().serialize());
        disagreement = scorer.disagreement();
        timer.progress(scorer.chunks_run(), disagreement ? fmt::format("halves differ by {:.1f} %",
                                                                       100.0 * *disagreement)
                                                         : std::string());
    }
    const search::SensitivityScores measured = scorer.sensitivity().scores();
    Scores scores{scorer.spread(measured.cost), scorer.spread(measured.error), measured.n_chunks};
    price_unreached(bench, types, scorer.scored(), scores, observer);
    if (measured.n_chunks == 0) {
        throw Error(ErrorKind::unsupported_model, "no chunk of the text gave finite gradients",
                    bench.settings().model.string());
    }
    observer.log(
        LogLevel::info,
        disagreement
            ? fmt::format("scores from {} chunks; plans of two halves differ by {:.2f} % in "
                          "predicted loss",
                          measured.n_chunks, 100.0 * *disagreement)
            : fmt::format("scores from {} chunks", measured.n_chunks));
    nlohmann::json record = {
        {"cost", scores.cost}, {"error", scores.error}, {"n_chunks", scores.n_chunks}};
    for (const auto& tensor : types) record["types"].push_back(type_names(tensor));
    run.finish_stage("score", fingerprint, std::move(record));
    timer.finish(results);
    return scores;
}

}  // namespace voodoo::pipeline
