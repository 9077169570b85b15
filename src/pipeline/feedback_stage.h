// Stage "feedback": the tensors of a layout encoded again, each block of columns correcting the
// errors of the others (quant/feedback.h), on the student's own activations.
#pragma once

#include <vector>

#include "pipeline/candidates.h"

namespace voodoo::pipeline {

/// With settings.write_adjusted the adjusted rows are also left in <run>/adjusted, for
/// write_adjusted_source. Replaces tensors of `weights` by encodings whose output error is smaller.
/// The embedding comes first where it doubles as the head (with the head's inputs); then layer by
/// layer, each on what the layers before it give when they are quantized already. Tensors without a
/// matmul stay plain. types: by tensor, as in weights.
void apply_feedback(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                    const std::vector<ggml_type>& types, FinalWeights& weights, RunDir& run,
                    std::vector<StageResult>& results, Observer& observer,
                    const Cancellation& cancellation);

/// Puts back what an earlier run has encoded: hashes of adjusted rows by tensor name. False, and
/// nothing is changed, if the store has lost one of them.
bool restore_feedback(const Workbench& bench, Candidates& candidates,
                      const std::vector<ggml_type>& types, FinalWeights& weights,
                      const nlohmann::json& hashes);

/// Writes the model as settings.write_adjusted: F32 rows where the weights are the encoding of
/// adjusted ones, tuned F32 tensors, everything else as in the source. Throws Error(io).
void write_adjusted_source(const Workbench& bench, const FinalWeights& weights, const RunDir& run,
                           std::vector<StageResult>& results, Observer& observer,
                           const Cancellation& cancellation);

}  // namespace voodoo::pipeline
