// The gradient outlet of the second-order scores: squares of a gradient's contraction with the
// errors of a tensor's types, row by row, on sampled rows.
#pragma once

#include <vector>

#include "engine/outlets.h"
#include "pipeline/candidates.h"
#include "search/sensitivity.h"

namespace voodoo::pipeline {

/// One chunk: clear(), a step of the engine, finish(), then chunk().
class RowCostSink : public engine::GradientSink {
public:
    /// n_threads: how many threads will call take().
    RowCostSink(const std::vector<engine::WeightInfo>& weights, int n_threads);

    /// Measures weight `index` as entry `tensor` of chunk(). sample and the types' rows are
    /// borrowed. squared_norms: of every row of the tensor's source; the proxy of a row is this
    /// times the squared norm of its gradient.
    void set(int index, size_t tensor, const EncodedSample& sample,
             const std::vector<ggml_type>& types, std::vector<float> squared_norms);

    void clear();
    void take(int index, const float* dw, int64_t first_row, int64_t n_rows, int thread) override;
    /// Contracts what had to be added up first: weights whose gradient comes in several parts.
    void finish(ThreadPool& pool);
    /// Tensors that no weight was set for are empty.
    std::vector<search::RowSquares> chunk() const;

private:
    struct Entry {
        size_t tensor = 0;
        const RowSample* sample = nullptr;
        std::vector<quant::CandidateView> views;  // the source, then the types
        std::vector<float> squared_norms;
        std::vector<char> is_certain;    // by row of the tensor
        std::vector<float> accumulated;  // where the gradient comes in parts
        search::RowSquares squares;
        std::vector<double> rest;  // by thread
    };
    /// dw: rows [first_row, first_row + n_rows).
    void contract(Entry& entry, const float* dw, int64_t n_per_row, int64_t first_row,
                  int64_t n_rows, int thread);

    const std::vector<engine::WeightInfo>& weights_;
    int n_threads_;
    size_t n_tensors_ = 0;
    std::vector<Entry> entries_;
    std::vector<int> entry_of_;  // by weight, or -1
};

}  // namespace voodoo::pipeline
