// From a layout to what the file will hold: plain encoding, error feedback, tuned scales; each step
// is kept only where the measured KL falls.
#pragma once

#include <string>
#include <vector>

#include "pipeline/final_weights.h"
#include "pipeline/select.h"
#include "pipeline/stages.h"

namespace voodoo::pipeline {

struct Finished {
    FinalWeights weights;
    std::vector<StepGain> gains;
    std::vector<float> token_kl;  ///< of the final weights; empty without settings.compare
};

/// The steps that the settings switch on, for the layout that won. Leaves <run>/final.json, from
/// which restore_final makes the same weights again.
Finished finish_layout(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                       const Layout& layout, const std::string& plan_hash, Teacher& teacher,
                       RunDir& run, std::vector<StageResult>& results, Observer& observer,
                       const Cancellation& cancellation);

/// The weights of a plan: those of the run's final.json if it was made for this plan, else the
/// plain encoding. Throws Error(bad_file) for a damaged final.json, Error(usage) if the store has
/// lost what it names.
FinalWeights restore_final(Workbench& bench, Candidates& candidates,
                           const std::vector<ggml_type>& types, const std::string& plan_hash,
                           const RunDir& run);

}  // namespace voodoo::pipeline
