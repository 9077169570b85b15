// Stage "candidates": which types compete for each tensor, and their encoded bytes.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pipeline/calibration.h"
#include "pipeline/final_weights.h"
#include "pipeline/row_sample.h"
#include "pipeline/workbench.h"
#include "quant/store.h"

namespace voodoo::pipeline {

/// One type that competes for a tensor.
struct Candidate {
    ggml_type type = GGML_TYPE_F32;
    uint64_t bytes = 0;  ///< in the file, padding included
    double sample_error =
        0.0;  ///< importance-weighted squared error / squared weights, on a sample of rows
};

/// Types by tensor (indices as in Workbench::tensors()), ascending in bytes.
using CandidateTypes = std::vector<std::vector<Candidate>>;

/// Which types are left out before the search.
enum class Pruning {
    beaten,    ///< those that another one beats in error at no more bytes
    near_hull  ///< also those that lie clearly above the convex hull of (bytes, log error): for
               ///< searches that encode every type in full
};

/// A sample of rows in some types.
struct EncodedSample {
    RowSample rows;
    std::map<ggml_type, std::vector<std::byte>> encoded;  ///< rows one after another
    std::set<ggml_type> barred;  ///< types in which ggml can't represent these rows
};

/// Encodes on demand through the content-addressed store.
class Candidates {
public:
    Candidates(Workbench& bench, const Calibration& calibration,
               const std::filesystem::path& folder, Observer& observer,
               const Cancellation& cancellation);

    /// The encoded tensor; throws Error(internal) if ggml can't represent it in this type (see
    /// usable()).
    quant::StoredCandidate encoded(size_t tensor, ggml_type type);
    bool usable(size_t tensor, ggml_type type);
    /// The plain encoding of every tensor. Throws Error(usage) naming a tensor that ggml can't
    /// represent in its type.
    FinalWeights plain(const std::vector<ggml_type>& types);
    /// Encodes other rows than the source's, F32, and returns their hash too.
    std::pair<quant::StoredCandidate, std::string> encode_adjusted(size_t tensor, ggml_type type,
                                                                   std::span<const float> rows);
    /// What encode_adjusted has stored, if it is still there.
    std::optional<quant::StoredCandidate> find_adjusted(size_t tensor, ggml_type type,
                                                        const std::string& hash);
    /// Importances of a tensor, empty if it has none.
    const std::vector<float>& importance(size_t tensor) const { return importance_[tensor]; }

    /// A tensor's sampled rows in at least these types. Kept until drop_samples; the reference is
    /// valid until then.
    const EncodedSample& sample(size_t tensor, const std::vector<ggml_type>& types);
    /// Frees the samples of all types but these.
    void drop_samples(const CandidateTypes& keep);

    /// The types of a tensor that ggml, llama.cpp and the settings allow and whose bits per weight
    /// are not far below the budget's (for the plain gates, which encode all of them: not far above
    /// either), with errors measured on a stratified sample of rows. Cached in the run.
    CandidateTypes measure_types(uint64_t budget_bytes, RunDir& run,
                                 std::vector<StageResult>& results);

    /// What may win, by the measured errors.
    CandidateTypes prune(const CandidateTypes& all, Pruning pruning) const;

    /// Encodes all of them; barred types are removed from the list.
    void encode_all(CandidateTypes& types, std::vector<StageResult>& results);

private:
    quant::CandidateKey key(size_t tensor, ggml_type type);
    quant::CandidateKey key(size_t tensor, ggml_type type, std::string source_hash) const;
    struct Window {
        double min_bits = 0;
        double max_bits = 0;
    };
    Window find_window(uint64_t budget_bytes) const;
    std::vector<ggml_type> types_in_window(size_t tensor, const Window& window) const;
    std::vector<Candidate> measure(size_t tensor, const std::vector<ggml_type>& types);

    Workbench& bench_;
    Observer& observer_;
    const Cancellation& cancellation_;
    quant::CandidateStore store_;
    std::string token_hash_;
    std::vector<int64_t> token_counts_;
    std::map<size_t, EncodedSample> samples_;  // by tensor
    std::vector<std::vector<float>> importance_;
    std::vector<std::string> importance_hash_;
    std::vector<std::string> source_hash_;
};

/// Names of the types, in order.
std::vector<std::string> type_names(const std::vector<Candidate>& candidates);

/// Attainable file sizes under the settings' types, from shapes alone. Cheap.
struct SizeRange {
    uint64_t min = 0;
    uint64_t max = 0;
};
SizeRange attainable_range(const Workbench& bench);

/// Legal types of a tensor under the settings (whitelist, encoder limit, pins), ascending in bytes.
std::vector<ggml_type> allowed_types(const Workbench& bench, const Tensor& tensor,
                                     bool have_imatrix);

}  // namespace voodoo::pipeline
