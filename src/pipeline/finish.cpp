#include "pipeline/finish.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/feedback_stage.h"
#include "pipeline/stage_timer.h"
#include "pipeline/tune.h"
#include "search/compare.h"

namespace voodoo::pipeline {
namespace {

constexpr const char* kFinalFile = "final.json";

std::vector<double> means_of(const std::vector<float>& token_kl, int32_t chunk_len) {
    const std::vector<double> tokens(token_kl.begin(), token_kl.end());
    return search::chunk_means(tokens, static_cast<size_t>(chunk_len));
}

void save_final(const RunDir& run, const Workbench& bench, const FinalWeights& weights,
                const std::string& plan_hash) {
    nlohmann::json json{{"plan_hash", plan_hash},
                        {"adjusted", nlohmann::json::object()},
                        {"tuned", nlohmann::json::object()}};
    for (size_t t = 0; t < weights.tensors.size(); ++t) {
        if (!weights.adjusted_hash[t].empty())
            json["adjusted"][bench.tensors()[t].name] = weights.adjusted_hash[t];
    }
    for (const auto& [name, values] : weights.tuned) json["tuned"][name] = values;
    write_file_atomic(run.file(kFinalFile), json.dump() + "\n");
}

class Finisher {
public:
    Finisher(Workbench& bench, const Calibration& calibration, Teacher& teacher, Observer& observer,
             const Cancellation& cancellation)
        : bench_(bench),
          calibration_(calibration),
          teacher_(teacher),
          observer_(observer),
          cancellation_(cancellation) {}

    /// Measures `after` against `before`; takes it if it is better, or if nothing is measured.
    void offer(const std::string& step, Finished& finished, FinalWeights after) {
        if (!bench_.settings().compare) {
            finished.weights = std::move(after);
            return;
        }
        const std::vector<float> token_kl =
            Validator(bench_, calibration_, teacher_).token_kl(after, cancellation_);
        const auto a = means_of(token_kl, calibration_.chunk_len);
        const auto b = means_of(finished.token_kl, calibration_.chunk_len);
        const search::PairedComparison paired = search::compare_paired(a, b);
        const MeanKl kl = mean_kl(token_kl, calibration_.chunk_len);
        StepGain gain{step, kl.mean, kl.error, paired.mean_difference, paired.standard_error, true};
        gain.kept = paired.mean_difference < 0.0;
        observer_.log(LogLevel::info,
                      fmt::format("{}: validation KL {:.5f} -> {:.5f} (difference {:+.5f} +- "
                                  "{:.5f}){}",
                                  step, paired.mean_b, paired.mean_a, paired.mean_difference,
                                  paired.standard_error, gain.kept ? "" : ": not kept"));
        finished.gains.push_back(gain);
        if (!gain.kept) return;
        finished.weights = std::move(after);
        finished.token_kl = token_kl;
    }

private:
    Workbench& bench_;
    const Calibration& calibration_;
    Teacher& teacher_;
    Observer& observer_;
    const Cancellation& cancellation_;
};

}  // namespace

Finished finish_layout(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                       const Layout& layout, const std::string& plan_hash, Teacher& teacher,
                       RunDir& run, std::vector<StageResult>& results, Observer& observer,
                       const Cancellation& cancellation) {
    Finished finished;
    finished.weights = candidates.plain(layout.types);  // from the store
    finished.token_kl = layout.token_kl;
    Finisher finisher(bench, calibration, teacher, observer, cancellation);
    if (bench.settings().feedback) {
        FinalWeights after = finished.weights;
        apply_feedback(bench, calibration, candidates, layout.types, after, run, results, observer,
                       cancellation);
        finisher.offer("error feedback", finished, std::move(after));
    }
    if (bench.settings().tune != TuneMethod::none) {
        const TuneResult tuned = tune_scales(bench, calibration, finished.weights, teacher, run,
                                             results, observer, cancellation);
        if (tuned.n_tensors > 0) {
            const search::PairedComparison& v = tuned.validation;
            finished.gains.push_back({"tuned scales", v.mean_a, 0.0, v.mean_difference,
                                      v.standard_error, tuned.applied});
        }
    }
    save_final(run, bench, finished.weights, plan_hash);
    if (!bench.settings().write_adjusted.empty())
        write_adjusted_source(bench, finished.weights, run, results, observer, cancellation);
    return finished;
}

FinalWeights restore_final(Workbench& bench, Candidates& candidates,
                           const std::vector<ggml_type>& types, const std::string& plan_hash,
                           const RunDir& run) {
    FinalWeights weights = candidates.plain(types);
    if (!std::filesystem::exists(run.file(kFinalFile))) return weights;
    const auto json = nlohmann::json::parse(read_file(run.file(kFinalFile)), nullptr, false);
    try {
        if (json.is_discarded()) throw Error(ErrorKind::bad_file, "not JSON");
        if (json.at("plan_hash").get<std::string>() != plan_hash) return weights;
        for (const auto& [name, values] : json.at("tuned").items()) {
            const gguf::TensorInfo* info = bench.file().find_tensor(name);
            auto floats = values.get<std::vector<float>>();
            if (info == nullptr || info->type != GGML_TYPE_F32 ||
                info->n_elements() != static_cast<int64_t>(floats.size()))
                throw Error(ErrorKind::bad_file,
                            fmt::format("no F32 tensor {} of this size", name));
            weights.tuned.emplace(name, std::move(floats));
        }
        if (restore_feedback(bench, candidates, types, weights, json.at("adjusted")))
            return weights;
    } catch (const nlohmann::json::exception& error) {
        throw Error(ErrorKind::bad_file, error.what(), run.file(kFinalFile).string());
    }
    throw Error(ErrorKind::usage, "the run's candidate store has lost encoded tensors",
                run.path().string(), "run `voodoo train` or `voodoo quantize` again");
}

}  // namespace voodoo::pipeline
