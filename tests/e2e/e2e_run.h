// What the end-to-end tests share: small models in every source type, settings that run in a second
// or two, an observer that records and interrupts, and comparisons of model files.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/progress.h"
#include "gguf/reader.h"
#include "model/tiny_model.h"
#include "pipeline/stages.h"
#include "search/plan.h"

namespace voodoo::e2e {

using testing::TempFolder;

struct SourceOptions {
    ggml_type type = GGML_TYPE_BF16;  ///< of the matrices
    int n_embd = 256;                 ///< row length of most of them; ffn_down has twice that
    int n_layer = 1;
    bool tied = false;  ///< no output.weight: the embedding is the head too
    uint64_t seed = 1;
    int n_expert = 0;         ///< as in TinyModelOptions
    int n_expert_groups = 0;  ///< as in TinyModelOptions
    float outlier = 0.0f;     ///< if not 0: the first weight of row 1 of blk.0.ffn_gate
};

/// Writes a small llama model with a byte vocabulary to `path`.
void write_source(const std::filesystem::path& path, const SourceOptions& options = {});

/// Settings for a run of a few seconds on 2 threads: 64-token chunks of the text file that is
/// written beside the model, no comparison, and the types that encode fast.
pipeline::Settings quick_settings(const std::filesystem::path& model,
                                  const std::filesystem::path& output);

/// Settings for the trained tiny llama in the repository: 8192 tokens in chunks of 256, 2 threads,
/// no error feedback and no tuning; output and run directory in `folder`.
pipeline::Settings trained_settings(const TempFolder& folder);

/// A size `share` of the way from the smallest file that these settings allow to the largest.
uint64_t size_between(const pipeline::Settings& settings, double share);

/// Records what a run reports; `on_event` is called at every beginning, step and end of a stage.
class RecordingObserver : public Observer {
public:
    std::function<void(const std::string& stage, const char* event)> on_event;

    void log(LogLevel level, std::string_view message) override;
    void stage_begin(std::string_view stage, double total, std::string_view unit) override;
    void stage_progress(std::string_view stage, double done, std::string_view note) override;
    void stage_end(std::string_view stage, double seconds, bool from_cache) override;

    const std::vector<std::string>& begun() const { return begun_; }
    /// Log lines at `level` or above, joined.
    std::string log_text(LogLevel level = LogLevel::debug) const;
    int n_events() const { return n_events_; }

private:
    void event(const std::string& stage, const char* what);

    mutable std::mutex mutex_;
    std::vector<std::string> begun_;
    std::vector<std::pair<LogLevel, std::string>> lines_;
    int n_events_ = 0;
};

pipeline::QuantizeResult quantize(const pipeline::Settings& settings,
                                  Observer& observer = null_observer());

/// The names and types of the tensors of a file (any shard of it).
std::map<std::string, ggml_type> tensor_types(const std::filesystem::path& path);

/// Fails the test unless both files have the same tensors, types and bytes; returns how many were
/// compared.
int expect_same_tensors(const std::filesystem::path& ours, const std::filesystem::path& theirs);

/// The stages that a run directory has records of.
std::vector<std::string> finished_stages(const std::filesystem::path& run_dir);

/// Files in a folder whose names begin so, folders left out.
std::vector<std::string> files_beginning(const std::filesystem::path& folder,
                                         const std::string& prefix);

}  // namespace voodoo::e2e
