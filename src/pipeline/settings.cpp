#include "pipeline/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace voodoo::pipeline {

void validate(const Settings& settings) {
    std::vector<std::string> problems;
    const auto demand = [&](bool ok, std::string problem) {
        if (!ok) problems.push_back(std::move(problem));
    };
    demand(!settings.model.empty(), "no model is given");
    demand(settings.n_targets() <= 1, kTwoTargets);
    demand(!settings.bpw || (*settings.bpw > 0 && *settings.bpw <= 32),
           "bits per weight must lie in (0, 32]");
    demand(!settings.size_bytes || *settings.size_bytes > 0, "the size must not be 0");
    demand(settings.chunk_len >= 16 && settings.chunk_len <= 65536,
           "the chunk length must lie in [16, 65536]");
    demand(settings.n_tokens >= settings.chunk_len, "fewer calibration tokens than one chunk");
    demand(settings.n_valid_tokens >= settings.chunk_len, "fewer validation tokens than one chunk");
    demand(settings.tokens_per_step >= settings.chunk_len, "fewer tokens per step than one chunk");
    demand(settings.n_threads >= 0 && settings.n_threads <= 1024, "threads must lie in [0, 1024]");
    demand(settings.score_chunks >= 1 && settings.score_chunks <= 1'000'000,
           "the number of chunks for the scores must lie in [1, 1000000]");
    demand(settings.feedback_tokens >= settings.chunk_len, "fewer feedback tokens than one chunk");
    demand(settings.score_tolerance >= 0 && settings.score_tolerance < 1,
           "the tolerance of the scores must lie in [0, 1)");
    demand(settings.tune_tokens_per_step >= 1, "the tuning has steps of no tokens");
    demand(settings.max_encode_ns > 0, "the encoding limit must be positive");
    if (!problems.empty())
        throw Error(ErrorKind::usage, fmt::format("{}", fmt::join(problems, "; ")));
    search::validate(settings.gates);
    search::validate(settings.tuning);
}

}  // namespace voodoo::pipeline
