// Stage "score": the second-order cost of every type of every tensor, at the teacher.
#pragma once

#include <vector>

#include "pipeline/candidates.h"
#include "search/budget.h"

namespace voodoo::pipeline {

/// Costs by tensor and type (indices as in `types`), nats of KL per token. A tensor that no
/// gradient reaches is priced by its error as the average of the others, and named in the log.
struct Scores {
    std::vector<std::vector<double>> cost;
    std::vector<std::vector<double>> error;  ///< standard errors
    int n_chunks = 0;
};

/// Runs chunks of the training text through the model until two halves of them agree on the plan
/// for the budget (search::plan_disagreement) or settings.score_chunks are used. Saved after every
/// chunk, so that a killed run goes on where it was.
Scores measure_scores(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                      const CandidateTypes& types, RunDir& run, std::vector<StageResult>& results,
                      Observer& observer, const Cancellation& cancellation);

/// The knapsack over the types whose item (t, k) has the value values[t][k].
search::BudgetSolver budget_solver(const Workbench& bench, const CandidateTypes& types,
                                   const std::vector<std::vector<double>>& values);

}  // namespace voodoo::pipeline
