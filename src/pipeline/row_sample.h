// A sample of a tensor's rows: what the types' errors and second-order scores are measured on.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "pipeline/workbench.h"

namespace voodoo::pipeline {

/// Rows of one tensor in F32. Evenly spread; of a tensor with a row per token (embedding, head)
/// the most frequent tokens' rows are certain to be in it, since most of the loss hangs on them.
/// Rows are ascending and grouped by matrix (expert), the same number from each that is looked at.
struct RowSample {
    std::vector<int64_t> rows;      ///< counted through all matrices
    std::vector<char> certain;      ///< by entry of rows
    quant::MatrixShape shape;       ///< n_rows of each of n_mat matrices of the sample
    std::vector<float> source;      ///< [n_mat][n_rows][n_per_row]
    std::vector<float> importance;  ///< [n_mat][n_per_row], or empty
};

/// token_counts: how often each token occurs in the calibration text, or empty.
RowSample sample_rows(const Workbench& bench, const Tensor& tensor,
                      const std::vector<float>& importance, std::span<const int64_t> token_counts);

}  // namespace voodoo::pipeline
