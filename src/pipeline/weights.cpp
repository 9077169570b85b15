#include "pipeline/weights.h"

#include <algorithm>

#include "base/error.h"

namespace voodoo::pipeline {
namespace {

/// Never the same number twice in a process.
uint64_t next_version() {
    static std::atomic<uint64_t> last{0};
    return ++last;
}

}  // namespace

engine::ExecutorOptions gradient_options(const Workbench& bench) {
    engine::ExecutorOptions options;
    options.n_threads = bench.settings().n_threads;
    // The other half is for what lives beside the engine: the teacher's head, candidates, losses.
    options.memory_bytes = bench.memory_bytes() / 2;
    options.wants_gradient = [&bench](const engine::WeightInfo& info) {
        return bench.find_tensor(info.name) >= 0;
    };
    return options;
}

quant::MatrixShape matrix_shape(const engine::WeightInfo& weight) {
    return {weight.ne[0], weight.ne[1], weight.ne[2] * weight.ne[3]};
}

MixedWeights::MixedWeights(const gguf::File& file, const std::vector<engine::WeightInfo>& weights,
                           ThreadPool& pool)
    : file_(file), weights_(weights), pool_(pool) {
    for (const engine::WeightInfo& weight : weights) {
        const gguf::TensorInfo* tensor = file.find_tensor(weight.name);
        if (tensor == nullptr || tensor->n_elements() != weight.n_elements()) {
            throw Error(ErrorKind::unsupported_model,
                        "llama.cpp's graph uses a weight that is not in the file", weight.name);
        }
        tensors_.push_back(tensor);
        versions_.push_back(next_version());
    }
}

void MixedWeights::renew_version(const std::string& name) {
    for (size_t i = 0; i < weights_.size(); ++i) {
        if (weights_[i].name == name) versions_[i] = next_version();
    }
}

void MixedWeights::set(const std::string& name, Mixture mixture) {
    values_.erase(name);
    mixtures_[name] = std::move(mixture);
    renew_version(name);
}

void MixedWeights::set_values(const std::string& name, std::span<const float> values) {
    const gguf::TensorInfo* tensor = file_.find_tensor(name);
    VOODOO_CHECK(tensor != nullptr && tensor->n_elements() == static_cast<int64_t>(values.size()),
                 "{} values for {}", values.size(), name);
    mixtures_.erase(name);
    values_[name].assign(values.begin(), values.end());
    renew_version(name);
}

void MixedWeights::load(int index, float* rows, float* transposed) {
    const auto i = static_cast<size_t>(index);
    const quant::MatrixShape shape = matrix_shape(weights_[i]);
    const quant::MixOutput out{rows, transposed};
    if (const auto found = mixtures_.find(weights_[i].name); found != mixtures_.end()) {
        quant::mix(found->second.views, found->second.p, shape, out, pool_);
        return;
    }
    const gguf::TensorInfo& tensor = *tensors_[i];
    const auto given = values_.find(weights_[i].name);
    const quant::CandidateView view =
        given == values_.end()
            ? quant::make_view(tensor.type, file_.data(tensor).data(), shape.n_per_row)
            : quant::make_view(GGML_TYPE_F32,
                               reinterpret_cast<const std::byte*>(given->second.data()),
                               shape.n_per_row);
    const float one = 1.0F;
    quant::mix({&view, 1}, {&one, 1}, shape, out, pool_);
}

ContractSink::ContractSink(const std::vector<engine::WeightInfo>& weights, int n_threads)
    : weights_(weights), n_threads_(n_threads), views_(weights.size()), sums_(weights.size()) {}

void ContractSink::set(int index, std::vector<quant::CandidateView> views) {
    const auto i = static_cast<size_t>(index);
    sums_[i].assign(static_cast<size_t>(n_threads_), std::vector<double>(views.size(), 0.0));
    views_[i] = std::move(views);
}

void ContractSink::clear() {
    for (auto& weight : sums_) {
        for (auto& thread : weight) std::fill(thread.begin(), thread.end(), 0.0);
    }
}

void ContractSink::take(int index, const float* dw, int64_t first_row, int64_t n_rows, int thread) {
    const auto i = static_cast<size_t>(index);
    if (views_[i].empty() || thread >= n_threads_) return;
    std::vector<quant::CandidateView> views = views_[i];
    for (auto& view : views) view.data += static_cast<uint64_t>(first_row) * view.row_size_bytes;
    const quant::MatrixShape shape{weights_[i].ne[0], n_rows, 1};
    const int64_t n_blocks = quant::n_row_blocks(shape);
    std::vector<double> partial(static_cast<size_t>(n_blocks) * views.size());
    quant::contract_blocks(views, dw, shape, partial.data(), nullptr, 0, n_blocks);
    auto& sums = sums_[i][static_cast<size_t>(thread)];
    for (size_t block = 0; block < static_cast<size_t>(n_blocks); ++block) {
        for (size_t k = 0; k < views.size(); ++k) sums[k] += partial[block * views.size() + k];
    }
}

std::vector<double> ContractSink::contraction(int index) const {
    const auto i = static_cast<size_t>(index);
    std::vector<double> c(views_[i].size(), 0.0);
    for (const auto& thread : sums_[i]) {
        for (size_t k = 0; k < c.size(); ++k) c[k] += thread[k];
    }
    return c;
}

MomentSums::MomentSums(const std::vector<engine::WeightInfo>& weights) : weights_(weights) {
    for (const engine::WeightInfo& weight : weights) {
        sums_.emplace_back(static_cast<size_t>(weight.ne[0] * weight.n_matrices()), 0.0);
        counts_.emplace_back(static_cast<size_t>(weight.n_matrices()), 0);
    }
}

void MomentSums::take(int index, int64_t matrix, const float* x, int64_t n_columns, int64_t stride,
                      int ith, int nth) {
    const auto i = static_cast<size_t>(index);
    const int64_t n = weights_[i].ne[0];
    const int64_t begin = n * ith / nth;
    const int64_t end = n * (ith + 1) / nth;
    double* sums = sums_[i].data() + matrix * n;
    for (int64_t column = 0; column < n_columns; ++column) {
        const float* v = x + column * stride;
        for (int64_t j = begin; j < end; ++j)
            sums[j] += static_cast<double>(v[j]) * static_cast<double>(v[j]);
    }
    if (ith == 0) counts_[i][static_cast<size_t>(matrix)] += n_columns;
}

void MomentSums::add(int index, std::span<const float> x) {
    const int64_t n = weights_[static_cast<size_t>(index)].ne[0];
    take(index, 0, x.data(), static_cast<int64_t>(x.size()) / n, n, 0, 1);
}

bool MomentSums::is_empty(int index) const {
    const std::vector<int64_t>& counts = counts_[static_cast<size_t>(index)];
    return std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; });
}

}  // namespace voodoo::pipeline
