#include "search/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace voodoo::search {
namespace {

double sum_where(std::span<const double> values, std::span<const char> certain, bool which) {
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
        if ((certain[i] != 0) == which) sum += values[i];
    }
    return sum;
}

bool all_finite(const RowSquares& rows) {
    const auto finite = [](double x) { return std::isfinite(x); };
    return finite(rows.proxy_rest) &&
           std::all_of(rows.squares.begin(), rows.squares.end(), finite) &&
           std::all_of(rows.proxy.begin(), rows.proxy.end(), finite);
}

void add_to(std::vector<double>& sums, std::span<const double> values) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
}

}  // namespace

Sensitivity::Sensitivity(std::vector<SampledRows> tensors, int64_t n_positions)
    : tensors_(std::move(tensors)), n_positions_(n_positions), halves_(2) {
    if (n_positions < 1) {
        throw Error(ErrorKind::usage, "chunks without scored positions", "sensitivity");
    }
    for (const SampledRows& tensor : tensors_) {
        const size_t n = tensor.certain.size();
        if (tensor.n_types == 0 || n == 0 || static_cast<int64_t>(n) > tensor.n_rows) {
            throw Error(ErrorKind::usage,
                        fmt::format("a tensor with {} types and {} of {} rows", tensor.n_types, n,
                                    tensor.n_rows),
                        "sensitivity");
        }
        for (auto& half : halves_)
            half.push_back({std::vector<double>(n * tensor.n_types), std::vector<double>(n), 0.0});
        chunk_sum_.emplace_back(tensor.n_types, 0.0);
        chunk_square_.emplace_back(tensor.n_types, 0.0);
    }
}

double Sensitivity::estimate(size_t tensor, size_t type, const Sums& sums) const {
    const SampledRows& rows = tensors_[tensor];
    const size_t n = rows.certain.size();
    const std::span<const double> squares(sums.squares.data() + type * n, n);
    double total = sum_where(squares, rows.certain, true);
    const double sampled = sum_where(squares, rows.certain, false);
    const double proxy = sum_where(sums.proxy, rows.certain, false);
    if (proxy > 0.0) total += sampled / proxy * sums.proxy_rest;
    return total / (2.0 * static_cast<double>(n_positions_));
}

double Sensitivity::row_variance(size_t tensor, size_t type, const Sums& sums) const {
    const SampledRows& rows = tensors_[tensor];
    const size_t n = rows.certain.size();
    const double* squares = sums.squares.data() + type * n;
    const auto n_certain =
        std::count_if(rows.certain.begin(), rows.certain.end(), [](char c) { return c != 0; });
    const double n_sampled = static_cast<double>(n) - static_cast<double>(n_certain);
    const double n_rest = static_cast<double>(rows.n_rows - n_certain);
    const double proxy = sum_where(sums.proxy, rows.certain, false);
    if (n_sampled < 2.0 || n_sampled >= n_rest || proxy <= 0.0) return 0.0;
    const double ratio = sum_where({squares, n}, rows.certain, false) / proxy;
    double residuals = 0.0;
    for (size_t i = 0; i < n; ++i) {
        if (rows.certain[i] != 0) continue;
        const double e = squares[i] - ratio * sums.proxy[i];
        residuals += e * e;
    }
    // Scaled by the square of population's over sample's proxy: with heavy tails closer to the
    // truth than without.
    const double unit = 2.0 * static_cast<double>(n_positions_);
    const double scale = sums.proxy_rest / proxy * n_sampled / n_rest;
    return scale * scale * n_rest * n_rest * (1.0 - n_sampled / n_rest) * residuals /
           (n_sampled - 1.0) / n_sampled / (unit * unit);
}

bool Sensitivity::add(std::span<const RowSquares> chunk) {
    VOODOO_CHECK(chunk.size() == tensors_.size(), "squares of {} tensors instead of {}",
                 chunk.size(), tensors_.size());
    for (size_t t = 0; t < chunk.size(); ++t) {
        const size_t n = tensors_[t].certain.size();
        VOODOO_CHECK(
            chunk[t].proxy.size() == n && chunk[t].squares.size() == n * tensors_[t].n_types,
            "tensor {}: {} squares of {} rows", t, chunk[t].squares.size(), chunk[t].proxy.size());
        if (!all_finite(chunk[t])) return leave_out();
    }
    auto& half = halves_[static_cast<size_t>(n_chunks_ % 2)];
    for (size_t t = 0; t < chunk.size(); ++t) {
        add_to(half[t].squares, chunk[t].squares);
        add_to(half[t].proxy, chunk[t].proxy);
        half[t].proxy_rest += chunk[t].proxy_rest;
        const Sums own{chunk[t].squares, chunk[t].proxy, chunk[t].proxy_rest};
        for (size_t k = 0; k < tensors_[t].n_types; ++k) {
            const double cost = estimate(t, k, own);
            chunk_sum_[t][k] += cost;
            chunk_square_[t][k] += cost * cost;
        }
    }
    ++n_chunks_;
    return true;
}

bool Sensitivity::leave_out() {
    ++n_left_out_;
    return false;
}

SensitivityScores Sensitivity::scores() const {
    SensitivityScores scores;
    scores.n_chunks = n_chunks_;
    const double n = std::max(1, n_chunks_);
    for (size_t t = 0; t < tensors_.size(); ++t) {
        Sums all = halves_[0][t];
        add_to(all.squares, halves_[1][t].squares);
        add_to(all.proxy, halves_[1][t].proxy);
        all.proxy_rest += halves_[1][t].proxy_rest;
        auto& cost = scores.cost.emplace_back();
        auto& error = scores.error.emplace_back();
        for (size_t k = 0; k < tensors_[t].n_types; ++k) {
            cost.push_back(estimate(t, k, all) / n);
            const double mean = chunk_sum_[t][k] / n;
            const double spread = std::max(0.0, chunk_square_[t][k] / n - mean * mean);
            const double chunks = n > 1.0 ? spread / (n - 1.0) : mean * mean;
            error.push_back(std::sqrt(chunks + row_variance(t, k, all) / (n * n)));
        }
    }
    return scores;
}

std::vector<std::vector<double>> Sensitivity::half(int which) const {
    const int n = which == 0 ? (n_chunks_ + 1) / 2 : n_chunks_ / 2;
    std::vector<std::vector<double>> cost;
    for (size_t t = 0; t < tensors_.size(); ++t) {
        auto& row = cost.emplace_back();
        for (size_t k = 0; k < tensors_[t].n_types; ++k) {
            row.push_back(n == 0 ? 0.0
                                 : estimate(t, k, halves_[static_cast<size_t>(which)][t]) / n);
        }
    }
    return cost;
}

// The state is a sequence of doubles (counts are exact in them): n_chunks, n_left_out, then per
// tensor both halves and the sums over chunks.
std::string Sensitivity::serialize() const {
    std::vector<double> values{static_cast<double>(n_chunks_), static_cast<double>(n_left_out_)};
    const auto append = [&](const std::vector<double>& more) {
        values.insert(values.end(), more.begin(), more.end());
    };
    for (size_t t = 0; t < tensors_.size(); ++t) {
        for (const auto& half : halves_) {
            append(half[t].squares);
            append(half[t].proxy);
            values.push_back(half[t].proxy_rest);
        }
        append(chunk_sum_[t]);
        append(chunk_square_[t]);
    }
    std::string bytes(values.size() * sizeof(double), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

void Sensitivity::restore(std::string_view bytes) {
    size_t n_values = 2;
    for (const SampledRows& tensor : tensors_) {
        const size_t n = tensor.certain.size();
        n_values += 2 * (n * tensor.n_types + n + 1) + 2 * tensor.n_types;
    }
    std::vector<double> values(n_values);
    if (bytes.size() != n_values * sizeof(double)) {
        throw Error(ErrorKind::bad_file,
                    fmt::format("{} bytes instead of {}", bytes.size(), n_values * sizeof(double)),
                    "sensitivity");
    }
    std::memcpy(values.data(), bytes.data(), bytes.size());
    const bool good = std::all_of(values.begin(), values.end(),
                                  [](double x) { return std::isfinite(x) && x >= 0.0; });
    if (!good || values[0] > 1e9 || values[1] > 1e9) {
        throw Error(ErrorKind::bad_file, "a sum is negative or not finite", "sensitivity");
    }
    size_t at = 2;
    const auto take = [&](std::vector<double>& to) {
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
        at += to.size();
    };
    n_chunks_ = static_cast<int>(values[0]);
    n_left_out_ = static_cast<int>(values[1]);
    for (size_t t = 0; t < tensors_.size(); ++t) {
        for (auto& half : halves_) {
            take(half[t].squares);
            take(half[t].proxy);
            half[t].proxy_rest = values[at++];
        }
        take(chunk_sum_[t]);
        take(chunk_square_[t]);
    }
}

double plan_disagreement(
    const Sensitivity& sensitivity,
    const std::function<std::vector<size_t>(const std::vector<std::vector<double>>&)>& choose) {
    const auto all = sensitivity.scores().cost;
    const auto price = [&](const std::vector<size_t>& choice) {
        double sum = 0.0;
        for (size_t t = 0; t < choice.size(); ++t) sum += all[t][choice[t]];
        return sum;
    };
    const double best = price(choose(all));
    if (best <= 0.0) return 0.0;
    const double worst =
        std::max(price(choose(sensitivity.half(0))), price(choose(sensitivity.half(1))));
    return std::max(0.0, worst / best - 1.0);
}

}  // namespace voodoo::search
