// Stage "train": the gates, one epoch over the training batches.
#pragma once

#include <memory>
#include <vector>

#include "engine/loss.h"
#include "pipeline/candidates.h"
#include "pipeline/final_weights.h"
#include "pipeline/weights.h"
#include "search/gates.h"

namespace voodoo::pipeline {

/// The teacher's logits from cached hidden states: the tail of the graph with the source's head.
class Teacher {
public:
    Teacher(Workbench& bench, const Calibration& calibration);
    /// For engine::DistillationLoss; `first_batch` is added to the loss's batch numbers.
    engine::TeacherLogits logits(int first_batch);
    /// The same for steps whose batches are single chunks: batch b is chunk chunks[b].
    engine::TeacherLogits chunk_logits(std::vector<int> chunks);

private:
    /// Logits of any number of hidden states.
    std::span<const float> logits_of(std::span<const float> states);

    const Calibration& calibration_;
    engine::Executor executor_;
    MixedWeights weights_;
    std::vector<float> padded_, logits_;
};

/// Trains the gates, saving them after every step so that a killed run goes on where it was.
/// history and final state are also in <run>/gates.json. costs: second-order costs by tensor and
/// type, from which the gates start and which price their rounding; empty: the plain method.
search::Gates train_gates(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                          const CandidateTypes& types,
                          const std::vector<std::vector<double>>& costs, Teacher& teacher,
                          RunDir& run, std::vector<StageResult>& results, Observer& observer,
                          const Cancellation& cancellation);

/// Measures what a file would hold: KL(teacher || model with these weights) of every validation
/// token, weights decoded, activations exact.
class Validator {
public:
    Validator(Workbench& bench, const Calibration& calibration, Teacher& teacher);
    /// Nats, in token order.
    std::vector<float> token_kl(const FinalWeights& final, const Cancellation& cancellation);

private:
    Workbench& bench_;
    const Calibration& calibration_;
    Teacher& teacher_;
    engine::Executor executor_;
};

}  // namespace voodoo::pipeline
