#include "pipeline/row_sample.h"

#include <algorithm>
#include <numeric>

namespace voodoo::pipeline {
namespace {

constexpr int64_t kMinRows = 64;
constexpr int64_t kMaxRows = 256;
constexpr int64_t kMaxTokenRows = 2048;
constexpr int64_t kMaxMatrices = 16;
/// Of the rows of a tensor with a row per token, the part that is taken by frequency.
constexpr int64_t kCertainShare = 4;

/// Every row index with its flag, ascending, one matrix.
std::vector<std::pair<int64_t, char>> token_rows(int64_t n_rows, int64_t n_sampled,
                                                 std::span<const int64_t> counts) {
    std::vector<int64_t> by_count(static_cast<size_t>(n_rows));
    std::iota(by_count.begin(), by_count.end(), 0);
    std::stable_sort(by_count.begin(), by_count.end(), [&](int64_t a, int64_t b) {
        return counts[static_cast<size_t>(a)] > counts[static_cast<size_t>(b)];
    });
    const auto n_certain = static_cast<size_t>(n_sampled / kCertainShare);
    std::vector<int64_t> rest(by_count.begin() + static_cast<std::ptrdiff_t>(n_certain),
                              by_count.end());
    std::sort(rest.begin(), rest.end());
    std::vector<std::pair<int64_t, char>> rows;
    for (size_t i = 0; i < n_certain; ++i) rows.emplace_back(by_count[i], 1);
    const auto n_rest = static_cast<size_t>(n_sampled) - n_certain;
    for (size_t i = 0; i < n_rest; ++i) rows.emplace_back(rest[i * rest.size() / n_rest], 0);
    std::sort(rows.begin(), rows.end());
    return rows;
}

}  // namespace

RowSample sample_rows(const Workbench& bench, const Tensor& tensor,
                      const std::vector<float>& importance, std::span<const int64_t> token_counts) {
    const quant::MatrixShape& shape = tensor.shape;
    const int64_t n = shape.n_per_row;
    RowSample sample;
    const int64_t n_mat = std::min(shape.n_mat, kMaxMatrices);
    const bool by_token = tensor.is_embedding_or_head && shape.n_mat == 1 &&
                          shape.n_rows == static_cast<int64_t>(token_counts.size());
    const int64_t wanted =
        std::clamp(shape.n_rows / 16, kMinRows, by_token ? kMaxTokenRows : kMaxRows) / n_mat;
    const int64_t n_rows = std::clamp<int64_t>(wanted, 1, shape.n_rows);
    sample.shape = {n, n_rows, n_mat};
    if (by_token) {
        for (const auto& [row, certain] : token_rows(shape.n_rows, n_rows, token_counts)) {
            sample.rows.push_back(row);
            sample.certain.push_back(certain);
        }
    } else {
        for (int64_t m = 0; m < n_mat; ++m) {
            const int64_t first = m * shape.n_mat / n_mat * shape.n_rows;
            for (int64_t r = 0; r < n_rows; ++r)
                sample.rows.push_back(first + r * shape.n_rows / n_rows);
        }
        sample.certain.assign(sample.rows.size(), 0);
    }
    sample.source.resize(static_cast<size_t>(sample.shape.n_elements()));
    const std::byte* data = bench.file().data(*tensor.info).data();
    const uint64_t row_bytes = quant::row_bytes(tensor.info->type, n);
    for (size_t i = 0; i < sample.rows.size(); ++i) {
        quant::to_float(tensor.info->type, data + static_cast<uint64_t>(sample.rows[i]) * row_bytes,
                        sample.source.data() + i * static_cast<size_t>(n), n);
    }
    for (int64_t m = 0; m < n_mat && !importance.empty(); ++m) {
        const auto* from = importance.data() + m * shape.n_mat / n_mat * n;
        sample.importance.insert(sample.importance.end(), from, from + n);
    }
    return sample;
}

}  // namespace voodoo::pipeline
