// Stage "tune": what a file keeps in F32 (norms, biases) is trained for the encoded tensors.
#pragma once

#include "pipeline/final_weights.h"
#include "pipeline/train.h"
#include "search/tuning.h"

namespace voodoo::pipeline {

/// What the stage did.
struct TuneResult {
    bool applied = false;  ///< weights.tuned was filled in
    size_t n_tensors = 0;  ///< that could be tuned
    int64_t n_parameters = 0;
    int64_t n_steps = 0;  ///< after which validation was best
    /// Tuned (a) against untuned (b): mean KL of the validation chunks, nats per token.
    search::PairedComparison validation;
};

/// Weights of the graph that can be tuned: stored in F32, not quantizable, of one row or named a
/// norm or a bias, and reached by a gradient. Values as in `weights.tuned`, else as in the file.
std::vector<search::TuningTensor> tunable_tensors(const Workbench& bench,
                                                  const FinalWeights& weights,
                                                  const graph::Graph& graph, Observer& observer);

/// Tunes `weights.tuned` by KL(teacher || student) over the training chunks, at most one epoch, for
/// the encoded tensors as they are. Leaves `weights` alone if settings.tune is none or if the
/// validation KL did not fall by more than one paired standard error; the log says so. Saved every
/// few steps, so that a killed run goes on where it was and ends with the same bits.
TuneResult tune_scales(Workbench& bench, const Calibration& calibration, FinalWeights& weights,
                       Teacher& teacher, RunDir& run, std::vector<StageResult>& results,
                       Observer& observer, const Cancellation& cancellation);

}  // namespace voodoo::pipeline
