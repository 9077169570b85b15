// Second moments of made-up inputs, and the error that they give, for the tests of error feedback.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "test_data.h"

namespace voodoo::quant {

/// Moments of inputs that are mostly a mixture of n / 4 directions of falling strength, with some
/// columns much stronger than others, as those of a transformer are.
inline std::vector<float> make_correlated_moments(int64_t n, uint64_t seed) {
    Random random(seed, "moments");
    const int64_t n_directions = std::max<int64_t>(1, n / 4);
    std::vector<double> scale(static_cast<size_t>(n));
    for (double& s : scale) s = std::exp(0.7 * random.normal());
    std::vector<double> directions(static_cast<size_t>(n_directions * n));
    for (int64_t k = 0; k < n_directions; ++k) {
        const double strength = 2.0 / std::sqrt(1.0 + static_cast<double>(k));
        for (int64_t j = 0; j < n; ++j) {
            directions[static_cast<size_t>(k * n + j)] =
                strength * scale[static_cast<size_t>(j)] * random.normal();
        }
    }
    std::vector<double> sum(static_cast<size_t>(n * n), 0.0);
    for (int64_t i = 0; i < n; ++i) {
        sum[static_cast<size_t>(i * n + i)] = 0.2 * std::pow(scale[static_cast<size_t>(i)], 2);
    }
    for (int64_t k = 0; k < n_directions; ++k) {
        const double* d = directions.data() + k * n;
        for (int64_t i = 0; i < n; ++i) {
            double* row = sum.data() + i * n;
            for (int64_t j = 0; j < n; ++j) row[j] += d[i] * d[j];
        }
    }
    return {sum.begin(), sum.end()};
}

/// The same, made once.
inline const std::vector<float>& correlated_moments(int64_t n, uint64_t seed) {
    static std::map<std::pair<int64_t, uint64_t>, std::vector<float>> made;
    std::vector<float>& moments = made[{n, seed}];
    if (moments.empty()) moments = make_correlated_moments(n, seed);
    return moments;
}

inline std::vector<float> diagonal_of(const std::vector<float>& moments, int64_t n) {
    std::vector<float> diagonal;
    for (int64_t i = 0; i < n; ++i) diagonal.push_back(moments[static_cast<size_t>(i * n + i)]);
    return diagonal;
}

/// The moments with a share of the mean diagonal added, in double.
inline std::vector<double> damped_moments(const std::vector<float>& moments, int64_t n,
                                          double damping) {
    std::vector<double> result(moments.begin(), moments.end());
    double mean = 0.0;
    for (const float value : diagonal_of(moments, n)) mean += static_cast<double>(value);
    mean /= static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) result[static_cast<size_t>(i * n + i)] += damping * mean;
    return result;
}

/// tr(E H E') with E = source - decoded bytes, in double.
inline double moment_error(const std::vector<float>& source, const std::vector<float>& back,
                           const std::vector<double>& moments, int64_t n) {
    double error = 0.0;
    std::vector<double> e(static_cast<size_t>(n));
    for (size_t row = 0; row < source.size(); row += static_cast<size_t>(n)) {
        for (size_t i = 0; i < e.size(); ++i) {
            e[i] = static_cast<double>(source[row + i]) - static_cast<double>(back[row + i]);
        }
        for (size_t i = 0; i < e.size(); ++i) {
            double sum = 0.0;
            for (size_t j = 0; j < e.size(); ++j) sum += moments[i * e.size() + j] * e[j];
            error += e[i] * sum;
        }
    }
    return error;
}

/// Inverse by Gauss and Jordan, for positive definite matrices.
inline std::vector<double> inverse_of(std::vector<double> a, size_t n) {
    std::vector<double> b(n * n, 0.0);
    for (size_t i = 0; i < n; ++i) b[i * n + i] = 1.0;
    for (size_t k = 0; k < n; ++k) {
        const double pivot = a[k * n + k];
        for (size_t j = 0; j < n; ++j) {
            a[k * n + j] /= pivot;
            b[k * n + j] /= pivot;
        }
        for (size_t i = 0; i < n; ++i) {
            const double factor = a[i * n + k];
            if (i == k || factor == 0.0) continue;
            for (size_t j = 0; j < n; ++j) {
                a[i * n + j] -= factor * a[k * n + j];
                b[i * n + j] -= factor * b[k * n + j];
            }
        }
    }
    return b;
}

/// Rows [r0, r1) and columns [c0, c1) of an n-wide matrix.
inline std::vector<double> part_of(const std::vector<double>& m, size_t n, size_t r0, size_t r1,
                                   size_t c0, size_t c1) {
    std::vector<double> part;
    for (size_t i = r0; i < r1; ++i) {
        for (size_t j = c0; j < c1; ++j) part.push_back(m[i * n + j]);
    }
    return part;
}

/// [rows x inner] times [inner x columns].
inline std::vector<double> product_of(const std::vector<double>& a, const std::vector<double>& b,
                                      size_t rows, size_t inner, size_t columns) {
    std::vector<double> c(rows * columns, 0.0);
    for (size_t i = 0; i < rows; ++i) {
        for (size_t k = 0; k < inner; ++k) {
            for (size_t j = 0; j < columns; ++j)
                c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
        }
    }
    return c;
}

}  // namespace voodoo::quant
