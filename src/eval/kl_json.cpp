// KlReport as JSON for machines.
#include "eval/kl.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace voodoo::eval {

namespace {

using nlohmann::json;

// JSON has no NaN or infinity.
json number(double value) {
    return std::isfinite(value) ? json(value) : json(nullptr);
}

json estimate(const Estimate& e) {
    return {{"value", number(e.value)}, {"error", number(e.error)}};
}

json quantiles(const Distribution& d) {
    return {{"min", number(d.min)},       {"p0_1", number(d.p0_1)}, {"p1", number(d.p1)},
            {"p5", number(d.p5)},         {"p10", number(d.p10)},   {"p25", number(d.p25)},
            {"median", number(d.median)}, {"p75", number(d.p75)},   {"p90", number(d.p90)},
            {"p95", number(d.p95)},       {"p99", number(d.p99)},   {"p99_9", number(d.p99_9)},
            {"max", number(d.max)}};
}

template <typename T>
json numbers(const std::vector<T>& values) {
    json list = json::array();
    for (const T value : values) {
        list.push_back(number(static_cast<double>(value)));
    }
    return list;
}

}  // namespace

nlohmann::json to_json(const KlReport& report) {
    const KlStatistics& s = report.statistics;
    json result = {
        {"model", report.path.string()},
        {"description", report.description},
        {"size_bytes", report.size_bytes},
        {"bits_per_weight", number(report.bits_per_weight)},
        {"n_chunks", report.n_chunks},
        {"n_ctx", report.n_ctx},
        {"n_tokens", s.n_tokens},
        {"n_nonfinite", s.n_nonfinite},
        {"mean_kl", estimate(s.mean_kl)},
        {"kl", quantiles(s.kl)},
        {"mean_p_diff", estimate(s.mean_p_diff)},
        {"p_diff", quantiles(s.p_diff)},
        {"rms_p_diff", estimate(s.rms_p_diff)},
        {"same_top", estimate(s.same_top)},
        {"ppl", estimate(s.ppl)},
        {"ppl_base", estimate(s.ppl_base)},
        {"ln_ppl_ratio", estimate(s.ln_ppl_ratio)},
        {"ppl_ratio", estimate(s.ppl_ratio)},
        {"ppl_difference", estimate(s.ppl_difference)},
        {"ln_ppl_correlation", number(s.ln_ppl_correlation)},
        {"chunk_mean_kl", numbers(report.chunk_mean_kl)},
        {"tokens_per_second", number(report.tokens_per_second)},
    };
    if (!report.token_kl.empty()) {
        result["token_kl"] = numbers(report.token_kl);
    }
    return result;
}

}  // namespace voodoo::eval
