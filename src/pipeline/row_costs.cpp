#include "pipeline/row_costs.h"

#include <algorithm>

#include "base/error.h"
#include "pipeline/weights.h"

namespace voodoo::pipeline {
namespace {

/// In lanes, so that it is vectorised without changing the order of additions.
double squared_norm(const float* x, int64_t n) {
    constexpr int64_t kLanes = 16;
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
    }
    double sum = 0.0;
    for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    for (const float lane : lanes) sum += static_cast<double>(lane);
    return sum;
}

}  // namespace

RowCostSink::RowCostSink(const std::vector<engine::WeightInfo>& weights, int n_threads)
    : weights_(weights), n_threads_(n_threads), entry_of_(weights.size(), -1) {}

void RowCostSink::set(int index, size_t tensor, const EncodedSample& sample,
                      const std::vector<ggml_type>& types, std::vector<float> squared_norms) {
    const engine::WeightInfo& weight = weights_[static_cast<size_t>(index)];
    Entry entry;
    entry.tensor = tensor;
    entry.sample = &sample.rows;
    const int64_t n_per_row = sample.rows.shape.n_per_row;
    const auto* source = reinterpret_cast<const std::byte*>(sample.rows.source.data());
    entry.views.push_back(quant::make_view(GGML_TYPE_F32, source, n_per_row));
    for (const ggml_type type : types)
        entry.views.push_back(quant::make_view(type, sample.encoded.at(type).data(), n_per_row));
    entry.squared_norms = std::move(squared_norms);
    entry.is_certain.assign(entry.squared_norms.size(), 0);
    for (size_t i = 0; i < sample.rows.rows.size(); ++i)
        entry.is_certain[static_cast<size_t>(sample.rows.rows[i])] = sample.rows.certain[i];
    const size_t n = sample.rows.rows.size();
    entry.squares = {std::vector<double>(n * types.size()), std::vector<double>(n), 0.0};
    entry.rest.resize(static_cast<size_t>(n_threads_));
    if (weight.n_uses > 1) entry.accumulated.resize(static_cast<size_t>(weight.n_elements()));
    entry_of_[static_cast<size_t>(index)] = static_cast<int>(entries_.size());
    n_tensors_ = std::max(n_tensors_, tensor + 1);
    entries_.push_back(std::move(entry));
}

void RowCostSink::clear() {
    for (Entry& entry : entries_) {
        std::fill(entry.accumulated.begin(), entry.accumulated.end(), 0.0F);
        std::fill(entry.squares.squares.begin(), entry.squares.squares.end(), 0.0);
        std::fill(entry.squares.proxy.begin(), entry.squares.proxy.end(), 0.0);
        std::fill(entry.rest.begin(), entry.rest.end(), 0.0);
    }
}

void RowCostSink::contract(Entry& entry, const float* dw, int64_t n_per_row, int64_t begin,
                           int64_t n_rows, int thread) {
    const int64_t end = begin + n_rows;
    const auto row_of = [&](int64_t row) { return dw + (row - begin) * n_per_row; };
    const std::vector<int64_t>& rows = entry.sample->rows;
    const auto proxy = [&](int64_t row) {
        return squared_norm(row_of(row), n_per_row) *
               static_cast<double>(entry.squared_norms[static_cast<size_t>(row)]);
    };
    double rest = 0.0;
    for (int64_t row = begin; row < end; ++row) {
        if (entry.is_certain[static_cast<size_t>(row)] == 0) rest += proxy(row);
    }
    entry.rest[static_cast<size_t>(thread)] += rest;
    const auto first = std::lower_bound(rows.begin(), rows.end(), begin) - rows.begin();
    const auto last = std::lower_bound(rows.begin(), rows.end(), end) - rows.begin();
    const size_t n_views = entry.views.size();
    std::vector<float> gathered(static_cast<size_t>(quant::kRowBlock * n_per_row));
    std::vector<float> sums(n_views * static_cast<size_t>(quant::kRowBlock));
    std::vector<double> partial(n_views);
    for (int64_t s = first; s < last; s += quant::kRowBlock) {
        const int64_t n = std::min<int64_t>(quant::kRowBlock, last - s);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t row = rows[static_cast<size_t>(s + i)];
            std::copy_n(row_of(row), n_per_row, gathered.data() + i * n_per_row);
            entry.squares.proxy[static_cast<size_t>(s + i)] = proxy(row);
        }
        std::vector<quant::CandidateView> views = entry.views;
        for (auto& view : views) view.data += static_cast<uint64_t>(s) * view.row_size_bytes;
        quant::contract_blocks(views, gathered.data(), {n_per_row, n, 1}, partial.data(),
                               sums.data(), 0, 1);
        for (size_t k = 1; k < n_views; ++k) {
            for (int64_t i = 0; i < n; ++i) {
                const double d =
                    static_cast<double>(sums[k * static_cast<size_t>(n) + static_cast<size_t>(i)]) -
                    static_cast<double>(sums[static_cast<size_t>(i)]);
                entry.squares.squares[(k - 1) * rows.size() + static_cast<size_t>(s + i)] = d * d;
            }
        }
    }
}

void RowCostSink::take(int index, const float* dw, int64_t first_row, int64_t n_rows, int thread) {
    const int at = entry_of_[static_cast<size_t>(index)];
    if (at < 0 || thread >= n_threads_) return;
    Entry& entry = entries_[static_cast<size_t>(at)];
    const int64_t n_per_row = weights_[static_cast<size_t>(index)].ne[0];
    if (entry.accumulated.empty()) {
        contract(entry, dw, n_per_row, first_row, n_rows, thread);
        return;
    }
    float* sums = entry.accumulated.data() + first_row * n_per_row;
    for (int64_t i = 0; i < n_rows * n_per_row; ++i) sums[i] += dw[i];
}

void RowCostSink::finish(ThreadPool& pool) {
    for (size_t i = 0; i < weights_.size(); ++i) {
        if (entry_of_[i] < 0) continue;
        Entry& entry = entries_[static_cast<size_t>(entry_of_[i])];
        if (entry.accumulated.empty()) continue;
        const int n_parts = std::min(pool.size(), n_threads_);
        const int64_t n_per_row = weights_[i].ne[0], n_rows = weights_[i].n_rows();
        pool.parallel_for(n_parts, 1, [&](int64_t part, int64_t, int) {
            const int64_t begin = n_rows * part / n_parts;
            const int64_t end = n_rows * (part + 1) / n_parts;
            contract(entry, entry.accumulated.data() + begin * n_per_row, n_per_row, begin,
                     end - begin, static_cast<int>(part));
        });
    }
}

std::vector<search::RowSquares> RowCostSink::chunk() const {
    std::vector<search::RowSquares> chunk(n_tensors_);
    for (const Entry& entry : entries_) {
        chunk[entry.tensor] = entry.squares;
        for (const double rest : entry.rest) chunk[entry.tensor].proxy_rest += rest;
    }
    return chunk;
}

}  // namespace voodoo::pipeline
