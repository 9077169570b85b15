// Stage "data": calibration and validation tokens, the teacher's hidden states, the importance
// matrix.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/files.h"
#include "engine/executor.h"
#include "pipeline/run_dir.h"
#include "pipeline/stages.h"
#include "pipeline/workbench.h"
#include "quant/imatrix.h"

namespace voodoo::pipeline {

/// Batches of n_sequences chunks each: first those for training, then those for validation.
class Calibration {
public:
    int32_t chunk_len = 0;
    int n_sequences = 1;  ///< chunks in a batch
    int n_train = 0;      ///< batches
    int n_valid = 0;
    int64_t n_hidden = 0;
    std::string token_hash;
    quant::Imatrix imatrix;
    std::string imatrix_path;

    int64_t batch_tokens() const { return static_cast<int64_t>(chunk_len) * n_sequences; }
    /// Tokens of batch i, counted through training and validation.
    std::span<const int32_t> batch(int i) const {
        return std::span(tokens_).subspan(static_cast<size_t>(i * batch_tokens()),
                                          static_cast<size_t>(batch_tokens()));
    }
    /// Teacher's hidden states of batch i, [batch_tokens][n_hidden], mapped.
    std::span<const float> states(int i) const;

    /// The same chunk by chunk: n_sequences times as many.
    int n_train_chunks() const { return n_train * n_sequences; }
    int n_valid_chunks() const { return n_valid * n_sequences; }
    std::span<const int32_t> chunk(int i) const {
        const auto n = static_cast<size_t>(chunk_len);
        return std::span(tokens_).subspan(static_cast<size_t>(i) * n, n);
    }
    std::span<const float> chunk_states(int i) const {
        const auto n = static_cast<size_t>(chunk_len * n_hidden);
        return states(i / n_sequences).subspan(static_cast<size_t>(i % n_sequences) * n, n);
    }
    /// Tells the kernel that a batch's states are not needed soon.
    void drop_states(int i) const;

private:
    friend class DataStage;
    std::vector<int32_t> tokens_;
    MappedFile states_;
};

/// Makes or reloads the data of a run. `results` receives the stages that were run.
Calibration prepare_calibration(Workbench& bench, RunDir& run, std::vector<StageResult>& results,
                                Observer& observer, const Cancellation& cancellation);

/// Chunks per batch for these settings.
int sequences_per_batch(const Settings& settings);

}  // namespace voodoo::pipeline
