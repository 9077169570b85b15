// Everything a run can be told, with units and defaults. The command line and the TOML config fill
// it (cli/options); the run directory records it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "search/gates.h"
#include "search/tuning.h"

namespace voodoo::pipeline {

/// How types are chosen.
enum class LayoutMethod {
    second_order,  ///< knapsack over second-order costs (search/sensitivity.h)
    gates,         ///< gates that start from these costs and count the rounding to one type
    gates_plain,   ///< gates from nothing: the original method
};

/// What is tuned after the tensors are encoded.
enum class TuneMethod {
    none,
    scales,  ///< the parameters that the file keeps in F32: norms, biases (search/tuning.h)
};

struct Settings {
    // Files.
    std::filesystem::path model;    ///< source GGUF (BF16, F16, F32 or Q8_0), may be split
    std::filesystem::path output;   ///< GGUF to write
    std::filesystem::path run_dir;  ///< stages' results; default: <output>.run, or <model>.run

    // Target. Exactly one of them, or none where no size is needed.
    std::optional<uint64_t> size_bytes;  ///< whole file, bytes
    std::optional<double> bpw;   ///< bits per weight of the whole file: size = bpw * weights / 8
    std::string preset;          ///< the size that llama-quantize's preset of this name would have
    std::filesystem::path like;  ///< the size of this GGUF, all its shards

    /// How many of the four targets are given.
    int n_targets() const {
        return (size_bytes ? 1 : 0) + (bpw ? 1 : 0) + (preset.empty() ? 0 : 1) +
               (like.empty() ? 0 : 1);
    }

    // Calibration data.
    std::vector<std::filesystem::path>
        text;                       ///< UTF-8 text files; none: the teacher generates its own
    std::filesystem::path imatrix;  ///< importance matrix to use instead of computing one
    int64_t n_tokens = 49152;       ///< calibration tokens (training), rounded down to whole chunks
    int64_t n_valid_tokens = 8192;  ///< tokens set apart for validation, never trained on
    int32_t chunk_len = 512;        ///< tokens in a sequence

    // Candidates.
    std::vector<std::string> types;  ///< whitelist of type names; empty: all that pay
    std::vector<std::pair<std::string, std::string>> tensor_types;  ///< (tensor name, type): pinned
    std::vector<std::string> keep;  ///< tensor names left as they are
    double max_encode_ns =
        1000.0;  ///< skip types whose encoder is slower, ns per weight, unless whitelisted
    std::string
        ggml_lib;  ///< path of a libggml-base that produces the bytes; empty: the linked one

    // Layout.
    LayoutMethod layout = LayoutMethod::second_order;
    int64_t score_chunks = 24;      ///< at most so many chunks are used for second-order costs
    double score_tolerance = 0.01;  ///< fewer, once the plans of two halves of them differ by less
                                    ///< than this share of the predicted loss

    // Encoding.
    bool feedback = true;             ///< error feedback between blocks (quant/feedback.h)
    int64_t feedback_tokens = 16384;  ///< calibration tokens whose activations it is fitted to
    /// GGUF to write the adjusted source to: F32 where feedback changed a tensor. llama-quantize
    /// makes the output's bytes of it.
    std::filesystem::path write_adjusted;

    // Gates.
    search::GateOptions gates;       ///< n_steps is derived from n_tokens and tokens_per_step
    int64_t tokens_per_step = 2048;  ///< tokens of one optimizer step

    // Tuning.
    TuneMethod tune = TuneMethod::scales;
    search::TuningOptions tuning;        ///< n_steps: at most; fewer where the text is shorter
    int64_t tune_tokens_per_step = 512;  ///< tokens of one step of the tuning, at least one chunk

    // Outcome.
    bool compare = true;           ///< measure against the preset below and the best two-type mix
    uint64_t split_max_bytes = 0;  ///< write shards of at most this size; 0: one file

    // Machine.
    uint64_t seed = 1;
    int n_threads = 0;  ///< 0: all that the process may use
    uint64_t memory_bytes =
        0;  ///< bound on the engine's working memory; 0: 60 % of what is available
};

/// What is wrong where Settings::n_targets() is above 1.
inline constexpr const char* kTwoTargets =
    "more than one of size, bits per weight, preset and like is given";

/// Throws Error(usage) listing every value that is out of range.
void validate(const Settings& settings);

}  // namespace voodoo::pipeline
