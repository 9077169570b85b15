// The stages of a run, each of which leaves its result in the run directory and is skipped when
// that is there already.
//   data -> candidates -> train -> select -> export
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "base/progress.h"
#include "eval/kl.h"
#include "pipeline/settings.h"

namespace voodoo::pipeline {

/// Time, origin and headline figures of one stage.
struct StageResult {
    std::string stage;
    double seconds = 0;
    bool from_cache = false;
};

/// What a step after the choice of types changed, on the validation tokens.
struct StepGain {
    std::string step;             ///< "error feedback", "tuned scales"
    double mean_kl = 0;           ///< nats per token, after the step
    double standard_error = 0;    ///< over chunks
    double difference = 0;        ///< after - before
    double difference_error = 0;  ///< paired over chunks
    bool kept = true;
};

/// What `quantize` hands back; all of it is also in <run>/run.json.
struct QuantizeResult {
    std::vector<StageResult> stages;
    uint64_t file_bytes = 0;
    uint64_t target_bytes = 0;
    double bits_per_weight = 0;
    std::string chosen;  ///< "gates", or the baseline that measured better
    struct Measured {
        std::string name;  ///< "gates", "preset Q3_K_M", "mix Q3_K+Q4_K"
        uint64_t file_bytes = 0;
        double mean_kl = 0;  ///< nats per token, on the validation chunks
        double standard_error = 0;
    };
    std::vector<Measured> measured;  ///< empty with compare = false
    std::vector<StepGain> steps;     ///< empty with compare = false
    uint64_t peak_memory_bytes = 0;  ///< peak anonymous memory of the process
    std::vector<std::filesystem::path> files;
};

/// Everything in one command. Throws Error.
QuantizeResult run_quantize(const Settings& settings, Observer& observer,
                            const Cancellation& cancellation);

/// Calibration tokens, importance matrix and teacher states into the run directory.
std::vector<StageResult> run_data(const Settings& settings, Observer& observer,
                                  const Cancellation& cancellation);

/// run_data, candidates, gates and the projection: leaves plan.json and recipe.txt.
std::vector<StageResult> run_train(const Settings& settings, Observer& observer,
                                   const Cancellation& cancellation);

/// Writes settings.output from <run>/plan.json, or from `plan` if it is not empty.
QuantizeResult run_export(const Settings& settings, const std::filesystem::path& plan,
                          Observer& observer, const Cancellation& cancellation);

/// What is in a model and what a size could buy.
struct TensorRow {
    std::string name;
    std::string type;
    std::vector<int64_t> shape;
    uint64_t size_bytes = 0;
    bool quantizable = false;
    std::vector<std::string> legal_types;
};
struct PresetRow {
    std::string name;
    uint64_t file_bytes = 0;
    double bits_per_weight = 0;
};
struct Inspection {
    std::string architecture;
    std::string description;
    uint64_t file_bytes = 0;
    uint64_t n_weights = 0;
    std::vector<TensorRow> tensors;
    std::vector<PresetRow> presets;  ///< ascending in size
    uint64_t min_file_bytes = 0;     ///< attainable range with the settings' types
    uint64_t max_file_bytes = 0;
};
Inspection inspect(const Settings& settings);

/// State of the machine and, where a model is given, of its differentiability.
struct DoctorReport {
    struct Check {
        std::string name;
        bool ok = true;
        std::string detail;
    };
    std::vector<Check> checks;
    bool ok() const;
};
/// `model` may be empty.
DoctorReport doctor(const Settings& settings);

nlohmann::json to_json(const QuantizeResult& result);
nlohmann::json to_json(const Inspection& inspection);
nlohmann::json to_json(const DoctorReport& report);

}  // namespace voodoo::pipeline
