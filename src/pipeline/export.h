// Writes a plan as GGUF. The bytes of every quantized tensor are those of the candidate store: made
// by ggml's encoder once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "pipeline/candidates.h"
#include "search/plan.h"

namespace voodoo::pipeline {

/// Throws Error(usage) if no output is named, if it is one of the model's own files, or if its
/// folder is not there.
void check_output_path(const Workbench& bench);

/// The same for settings.write_adjusted where it is given, which is no output's path either.
void check_adjusted_path(const Workbench& bench);

/// Types by tensor index from a plan that has been checked against the model. Throws Error(usage).
std::vector<ggml_type> plan_types(const Workbench& bench, const search::Plan& plan);

/// Writes the weights as settings.output (or its shards), reads it back through the validating
/// reader, and returns the files.
std::vector<std::filesystem::path> write_model(Workbench& bench, const FinalWeights& weights,
                                               const search::Plan& plan, Observer& observer,
                                               const Cancellation& cancellation,
                                               std::vector<StageResult>& results);

}  // namespace voodoo::pipeline
