// Stages "encode" and "select": learned scores -> a plan that fits the budget, encoded; and the
// comparison with what one would do by hand.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/presets.h"
#include "pipeline/train.h"
#include "search/plan.h"

namespace voodoo::pipeline {

/// A complete choice of types.
struct Layout {
    std::string name;              ///< "gates", "preset Q3_K_M", ...
    std::vector<ggml_type> types;  ///< by tensor
    uint64_t file_bytes = 0;
    double predicted_kl = 0;      ///< nats per token, by second-order costs; 0 if not predicted
    std::vector<float> token_kl;  ///< on the validation tokens; empty if not measured
};

struct Selection {
    std::vector<Layout> layouts;  ///< all that were considered; first the searches'
    size_t best = 0;
    std::vector<std::string> log;  ///< lines that say why
};

/// Predicted losses that are projected to the budget.
struct SearchValues {
    std::string name;                         ///< of the layout: "second order", "gates"
    std::vector<std::vector<double>> values;  ///< by tensor and type; lower is better
    /// What the bytes that are left over are spent by.
    std::vector<std::vector<double>> fill;
    bool are_costs = false;  ///< values are nats per token, so that their sum predicts the KL
};

/// Projects each of the searches' scores to the budget, encodes the plan and, with
/// settings.compare, measures it against the nearest preset below the size and the best mix of two
/// types; the plan with the lowest measured KL wins.
Selection select_layout(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                        const CandidateTypes& types, const CandidateTypes& all_types,
                        const std::vector<SearchValues>& searches, Teacher& teacher, RunDir& run,
                        std::vector<StageResult>& results, Observer& observer,
                        const Cancellation& cancellation);

/// What llama-quantize's preset gives the model (with an importance matrix), or nothing if it
/// can't apply it: some presets have no type for rows that their blocks don't fit.
std::optional<model::PresetLayout> try_preset_layout(const Workbench& bench,
                                                     std::string_view preset);

/// The plan file's contents for a layout.
search::Plan make_plan(const Workbench& bench, const Calibration& calibration,
                       const Layout& layout);

/// Mean and standard error over chunks of per-token values.
struct MeanKl {
    double mean = 0;
    double error = 0;
};
MeanKl mean_kl(const std::vector<float>& token_kl, int32_t chunk_len);

}  // namespace voodoo::pipeline
