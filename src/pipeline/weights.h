// The engine's outlets over real tensors: source weights, mixtures of candidates, contractions,
// second moments.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "engine/executor.h"
#include "gguf/reader.h"
#include "pipeline/workbench.h"
#include "quant/candidates.h"
#include "quant/imatrix.h"

namespace voodoo::pipeline {

/// A tensor as the weighted sum of encoded candidates.
struct Mixture {
    std::vector<quant::CandidateView> views;
    std::vector<float> p;
};

/// Weights from the file, some of them replaced by mixtures or by given values (by tensor name).
class MixedWeights : public engine::WeightSource {
public:
    MixedWeights(const gguf::File& file, const std::vector<engine::WeightInfo>& weights,
                 ThreadPool& pool);

    /// Replaces a tensor; weights that the graph does not use are ignored.
    void set(const std::string& name, Mixture mixture);
    /// Replaces a tensor of one row (a norm, a bias) or more by these values, copied, in the
    /// file's order.
    void set_values(const std::string& name, std::span<const float> values);
    void load(int index, float* rows, float* transposed) override;
    uint64_t version(int index) const override { return versions_[static_cast<size_t>(index)]; }

private:
    void renew_version(const std::string& name);

    const gguf::File& file_;
    const std::vector<engine::WeightInfo>& weights_;
    ThreadPool& pool_;
    std::vector<const gguf::TensorInfo*> tensors_;
    std::vector<uint64_t> versions_;  // by weight
    std::map<std::string, Mixture> mixtures_;
    std::map<std::string, std::vector<float>> values_;
};

/// Options of an executor with gradients of the tensors of the search, within the settings' memory
/// and threads.
engine::ExecutorOptions gradient_options(const Workbench& bench);

quant::MatrixShape matrix_shape(const engine::WeightInfo& weight);

/// c_k = <dW, W_k> for the tensors that are given, summed over all calls.
class ContractSink : public engine::GradientSink {
public:
    /// n_threads: how many threads will call take().
    ContractSink(const std::vector<engine::WeightInfo>& weights, int n_threads);

    void set(int index, std::vector<quant::CandidateView> views);
    void clear();
    void take(int index, const float* dw, int64_t first_row, int64_t n_rows, int thread) override;
    /// Sums over the threads in order.
    std::vector<double> contraction(int index) const;

private:
    const std::vector<engine::WeightInfo>& weights_;
    int n_threads_;
    std::vector<std::vector<quant::CandidateView>> views_;
    std::vector<std::vector<std::vector<double>>> sums_;  // [weight][thread][candidate]
};

/// Sums of squares of each weight's inputs, by matrix (expert, head) and column.
class MomentSums : public engine::MomentSink {
public:
    explicit MomentSums(const std::vector<engine::WeightInfo>& weights);

    void take(int index, int64_t matrix, const float* x, int64_t n_columns, int64_t stride, int ith,
              int nth) override;
    /// Adds vectors of a weight's input that the engine does not see (the head's: hidden states).
    void add(int index, std::span<const float> x);

    /// [n_matrices][ne0]
    const std::vector<double>& sums(int index) const { return sums_[static_cast<size_t>(index)]; }
    /// Input vectors that each matrix saw.
    const std::vector<int64_t>& counts(int index) const {
        return counts_[static_cast<size_t>(index)];
    }
    bool is_empty(int index) const;

private:
    const std::vector<engine::WeightInfo>& weights_;
    std::vector<std::vector<double>> sums_;
    std::vector<std::vector<int64_t>> counts_;
};

}  // namespace voodoo::pipeline
