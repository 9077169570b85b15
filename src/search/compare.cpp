#include "search/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace voodoo::search {
namespace {

const char* describe(Verdict verdict) {
    switch (verdict) {
        case Verdict::a_better:
            return "the difference is significant in favour of the searched plan";
        case Verdict::b_better:
            return "the difference is significant against the searched plan";
        case Verdict::undecided:
            break;
    }
    return "the difference is within the noise";
}

/// Why a plan can't be chosen, or an empty string.
std::string find_bar(const MeasuredPlan& plan, uint64_t target_bytes) {
    if (!std::isfinite(plan.mean_kl)) {
        return "its KL is not finite";
    }
    if (target_bytes != 0 && plan.file_bytes > target_bytes) {
        return fmt::format("it is {} bytes larger than the target", plan.file_bytes - target_bytes);
    }
    return {};
}

bool finite_series(const std::vector<double>& series) {
    return std::all_of(series.begin(), series.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

PairedComparison compare_paired(std::span<const double> a, std::span<const double> b,
                                double z_threshold) {
    if (a.size() != b.size() || a.empty()) {
        throw Error(ErrorKind::usage,
                    fmt::format("a paired comparison needs two series of one length, not {} and {}",
                                a.size(), b.size()),
                    "compare");
    }
    PairedComparison out;
    out.n = a.size();
    const auto n = static_cast<double>(out.n);
    for (size_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
            throw Error(ErrorKind::usage,
                        fmt::format("value {} of a paired comparison is not finite", i), "compare");
        }
        out.mean_a += a[i] / n;
        out.mean_b += b[i] / n;
        out.mean_difference += (a[i] - b[i]) / n;
    }
    double squares = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double deviation = (a[i] - b[i]) - out.mean_difference;
        squares += deviation * deviation;
    }
    out.standard_error =
        out.n > 1 ? std::sqrt(squares / (n - 1.0) / n) : std::numeric_limits<double>::infinity();
    if (out.mean_difference != 0.0) {
        out.z = out.mean_difference / out.standard_error;
    }
    if (std::abs(out.mean_difference) > z_threshold * out.standard_error) {
        out.verdict = out.mean_difference < 0.0 ? Verdict::a_better : Verdict::b_better;
    }
    return out;
}

std::vector<double> chunk_means(std::span<const double> values, size_t chunk_size) {
    if (chunk_size == 0) {
        throw Error(ErrorKind::usage, "a chunk of 0 values", "compare");
    }
    std::vector<double> means;
    for (size_t begin = 0; begin < values.size(); begin += chunk_size) {
        const auto chunk = values.subspan(begin, std::min(chunk_size, values.size() - begin));
        means.push_back(std::accumulate(chunk.begin(), chunk.end(), 0.0) /
                        static_cast<double>(chunk.size()));
    }
    return means;
}

Choice choose_best(std::span<const MeasuredPlan> plans, size_t searched, uint64_t target_bytes) {
    if (searched >= plans.size()) {
        throw Error(ErrorKind::usage,
                    fmt::format("plan {} of {} does not exist", searched, plans.size()), "compare");
    }
    // Total order: KL, then the searched plan, then size, then position.
    const auto better = [&](size_t i, size_t j) {
        if (plans[i].mean_kl != plans[j].mean_kl) {
            return plans[i].mean_kl < plans[j].mean_kl;
        }
        if ((i == searched) != (j == searched)) {
            return i == searched;
        }
        return plans[i].file_bytes != plans[j].file_bytes
                   ? plans[i].file_bytes < plans[j].file_bytes
                   : i < j;
    };
    Choice out;
    std::vector<size_t> eligible;
    for (size_t i = 0; i < plans.size(); ++i) {
        const std::string bar = find_bar(plans[i], target_bytes);
        out.log.push_back(fmt::format("{}: mean KL {:.6f}, {}{}", plans[i].name, plans[i].mean_kl,
                                      format_size(plans[i].file_bytes),
                                      bar.empty() ? "" : "; not eligible, " + bar));
        if (bar.empty()) {
            eligible.push_back(i);
        }
    }
    if (eligible.empty()) {
        throw Error(ErrorKind::usage, "none of the measured plans fits the target with a finite KL",
                    "compare");
    }
    std::sort(eligible.begin(), eligible.end(), better);
    out.best = eligible.front();
    out.searched_won = out.best == searched;

    const auto rival =
        std::find_if(eligible.begin(), eligible.end(), [&](size_t i) { return i != searched; });
    std::string noise;
    if (rival != eligible.end()) {
        const std::vector<double>& a = plans[searched].kl;
        const std::vector<double>& b = plans[*rival].kl;
        if (!a.empty() && a.size() == b.size() && finite_series(a) && finite_series(b)) {
            out.comparison = compare_paired(a, b);
            noise =
                fmt::format(" (difference {:+.6f} +- {:.6f}: {})", out.comparison.mean_difference,
                            out.comparison.standard_error, describe(out.comparison.verdict));
        }
    }
    if (out.searched_won) {
        out.log.push_back(
            fmt::format("exported: {}, the best measured{}", plans[searched].name, noise));
    } else {
        out.log.push_back(fmt::format("exported: {}, because {} lost to it{}", plans[out.best].name,
                                      plans[searched].name, noise));
    }
    return out;
}

}  // namespace voodoo::search
