// Which of several measured plans is better: paired statistics of their KL on the same text, and
// the rule that the best measured one is exported even if it is not the search's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace voodoo::search {

enum class Verdict { a_better, b_better, undecided };

/// a - b over the same tokens or chunks.
struct PairedComparison {
    size_t n = 0;
    double mean_a = 0.0;
    double mean_b = 0.0;
    double mean_difference = 0.0;  ///< mean of a - b; negative: a is better
    double standard_error = 0.0;   ///< of mean_difference (n - 1); infinite for n = 1
    double z = 0.0;                ///< mean_difference / standard_error; 0 if both are 0
    Verdict verdict = Verdict::undecided;
};

/// Compares two series of KL (nats, lower is better) measured on the same tokens or chunks. Decided
/// if |mean difference| > z_threshold standard errors. Tokens of one chunk are correlated: give
/// chunk means (chunk_means) for honest errors. Throws Error(usage) if lengths differ, are 0, or a
/// value is not finite.
PairedComparison compare_paired(std::span<const double> a, std::span<const double> b,
                                double z_threshold = 2.0);

/// Means of consecutive chunks; a shorter last chunk counts as one.
std::vector<double> chunk_means(std::span<const double> values, size_t chunk_size);

/// A plan and what was measured.
struct MeasuredPlan {
    std::string name;        ///< e.g. "search", "preset Q4_K_M", "uniform Q4_K+Q3_K"
    double mean_kl = 0.0;    ///< nats per token, held-out text
    std::vector<double> kl;  ///< per chunk or token on the same text for all; may be empty
    uint64_t file_bytes = 0;
};

struct Choice {
    size_t best = 0;            ///< index into the plans
    bool searched_won = false;  ///< best == searched
    /// searched against best of the others (a = searched); n = 0 if there is none or no series.
    PairedComparison comparison;
    std::vector<std::string>
        log;  ///< lines for the user: each plan's figures, the decision and why
};

/// The lowest mean KL among plans that fit the target (0: no limit) and have a finite KL. Of equals
/// the searched plan wins, then the smaller file, then the earlier. Throws Error(usage) if
/// `searched` is no index or no plan is eligible.
Choice choose_best(std::span<const MeasuredPlan> plans, size_t searched, uint64_t target_bytes);

}  // namespace voodoo::search
