// Stage "feedback": the tensors of a layout encoded again, each block of columns correcting the
// errors of the others (quant/feedback.h), on the student's own activations.
#pragma once

#include <vector>

#include "pipeline/candidates.h"

namespace voodoo::pipeline {

/// Replaces tensors of `weights` by encodings whose output error is smaller. The embedding comes
/// first where it doubles as the head (with the head's inputs); then layer by layer, each on what
/// the layers before it give when they are quantized already. Tensors without a matmul stay plain.
/// types: by tensor, as in weights.
void apply_feedback(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                    const std::vector<ggml_type>& types, FinalWeights& weights, RunDir& run,
                    std::vector<StageResult>& results, Observer& observer,
                    const Cancellation& cancellation);

/// Forgets the feedback of a finished run's record where the store still has every tensor; false
/// if it does not. For export from a run directory.
bool restore_feedback(const Workbench& bench, Candidates& candidates,
                      const std::vector<ggml_type>& types, FinalWeights& weights,
                      const nlohmann::json& hashes);

}  // namespace voodoo::pipeline
