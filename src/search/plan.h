// A plan: which quantization type every tensor gets, and where that choice came from. A plain
// struct that can be written by hand; types are names ("Q4_K"), so nothing here knows ggml.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace voodoo::search {

inline constexpr int kPlanVersion = 1;

/// Name and shape (ne0 first) of a tensor that a plan has to cover.
struct TensorInfo {
    std::string name;
    std::vector<int64_t> shape;
};

struct PlanEntry {
    std::string tensor;
    std::string type;  ///< ggml's name of the type in any case, e.g. "Q4_K"

    bool operator==(const PlanEntry&) const = default;
};

struct Plan {
    std::vector<PlanEntry> tensors;  ///< in file order, every quantizable tensor once
    std::string model_id;            ///< model_identity() of `tensors`' shapes; empty: any model
    uint64_t target_bytes = 0;       ///< what was asked for; 0: nothing
    uint64_t file_bytes = 0;         ///< predicted or written size of the whole file; 0: not known
    std::string imatrix_hash;        ///< SHA-256 of the importance matrix, or empty
    std::string encoder;             ///< which library encodes, e.g. "libggml-base v0.5.0"
    uint64_t seed = 0;
    std::string method;                    ///< e.g. "gates", "uniform Q4_K+Q3_K", "hand"
    std::map<std::string, double> scores;  ///< optional figures, e.g. "predicted_loss"; finite

    bool operator==(const Plan&) const = default;

    /// SHA-256 over the assignments alone (sorted by tensor name, types in lower case): equal
    /// hashes mean equal bytes from the same model, imatrix and encoder.
    std::string plan_hash() const;
    /// Type of a tensor, or nullptr.
    const std::string* find_type(std::string_view tensor) const;
};

/// SHA-256 over names and shapes in the given order.
std::string model_identity(std::span<const TensorInfo> tensors);

/// Stable JSON: same plan, same bytes. Throws Error(usage) if the plan itself is not valid.
std::string to_json(const Plan& plan);
/// Throws Error(bad_file) for anything that to_json would not write, apart from missing optional
/// fields; `where` names the source in the message.
Plan plan_from_json(std::string_view text, const std::string& where = "plan");
/// Throws Error(io) or Error(bad_file).
Plan read_plan(const std::string& path);
void write_plan(const std::string& path, const Plan& plan);

/// Names, types and scores are well-formed and no tensor appears twice; else throws Error(usage).
void validate_plan(const Plan& plan);
/// The plan names exactly `tensors` and, if it carries a model_id, was made for these shapes.
/// Throws Error(usage) that lists all (at most 8 of each kind) unknown and missing tensors.
void check_plan_fits(const Plan& plan, std::span<const TensorInfo> tensors);

/// Text for `llama-quantize --tensor-type-file FILE in out Q8_0`: one line per tensor,
/// `^blk\.0\.ffn_down\.weight$=q4_k`. The patterns are regular expressions that llama-quantize
/// lower-cases, so every character outside [a-z0-9_-] and '.' is written as \xHH.
std::string to_recipe(const Plan& plan);

}  // namespace voodoo::search
