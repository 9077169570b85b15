// Products of MUL_MAT_ID's gradient, by Eigen: its kernels take operands as they lie, so neither
// weights nor activations are transposed first.
#include "autodiff/experts.h"

#include <Eigen/Core>
#include <cstring>

#include "autodiff/kernels.h"

namespace voodoo::autodiff {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstView = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

int32_t id_at(const ggml_tensor* ids, int64_t slot, int64_t token) {
    int32_t id = 0;
    std::memcpy(&id, static_cast<const char*>(ids->data) + slot * ids->nb[0] + token * ids->nb[1],
                sizeof(id));
    return id;
}

const float* row_of(const ggml_tensor* t, const ExpertPair& pair) {
    return kernels::f32_row(t, pair.slot % t->ne[1] + t->ne[1] * pair.token);
}

/// Columns [begin, end) of the pairs' rows, one after the other.
void gather(const ggml_tensor* t, std::span<const ExpertPair> pairs, int64_t begin, int64_t end,
            std::vector<float>& out) {
    out.clear();
    for (const ExpertPair& pair : pairs) {
        const float* row = row_of(t, pair);
        out.insert(out.end(), row + begin, row + end);
    }
}

}  // namespace

ExpertGroups::ExpertGroups(const ggml_tensor* ids, int64_t n_expert)
    : first_(static_cast<size_t>(n_expert) + 1, 0),
      pairs_(static_cast<size_t>(ids->ne[0] * ids->ne[1])) {
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            ++first_[static_cast<size_t>(id_at(ids, slot, token)) + 1];
        }
    }
    for (size_t e = 1; e < first_.size(); ++e) {
        first_[e] += first_[e - 1];
    }
    std::vector<int64_t> next(first_.begin(), first_.end() - 1);
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            int64_t& at = next[static_cast<size_t>(id_at(ids, slot, token))];
            pairs_[static_cast<size_t>(at++)] = {slot, token};
        }
    }
}

ExpertGradient::ExpertGradient(const ExpertFactors& factors, int64_t n_expert)
    : factors_(factors), groups_(factors.ids, n_expert) {}

bool ExpertGradient::select(int64_t expert, int64_t row_begin, int64_t row_end) {
    const std::span<const ExpertPair> pairs = groups_.of(expert);
    n_pairs_ = static_cast<int64_t>(pairs.size());
    row_begin_ = row_begin;
    n_rows_ = row_end - row_begin;
    if (pairs.empty() || n_rows_ == 0) {
        return !pairs.empty();
    }
    gather(factors_.x, pairs, 0, factors_.x->ne[0], x_);
    gather(factors_.out_grad, pairs, row_begin, row_end, grad_);
    return true;
}

void ExpertGradient::rows(int64_t begin, int64_t end, float* out) const {
    const int64_t k = factors_.x->ne[0];
    const ConstView grad(grad_.data() + (begin - row_begin_), n_pairs_, end - begin,
                         Eigen::OuterStride<>(n_rows_));
    const ConstView x(x_.data(), n_pairs_, k, Eigen::OuterStride<>(k));
    Eigen::Map<Matrix>(out, end - begin, k).noalias() = grad.transpose() * x;
}

namespace kernels {

void expert_weight_grad(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const int64_t n_expert = dst->ne[2];
    ExpertGradient gradient({dst->src[0], dst->src[1], dst->src[2]}, n_expert);
    const Range rows = share(dst->ne[1], ith, nth);
    for (int64_t e = 0; e < n_expert; ++e) {
        float* out = static_cast<float*>(dst->data) + (e * dst->ne[1] + rows.begin) * dst->ne[0];
        if (gradient.select(e, rows.begin, rows.end)) {
            gradient.rows(rows.begin, rows.end, out);
        } else {
            std::fill_n(out, (rows.end - rows.begin) * dst->ne[0], 0.0F);
        }
    }
}

void expert_input_grad(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const ggml_tensor* w = dst->src[0];
    const ggml_tensor* out_grad = dst->src[1];
    const ExpertGroups groups(dst->src[2], w->ne[2]);
    // Threads share the columns, so that each does as much whatever the routing.
    const Range columns = share(dst->ne[0], ith, nth);
    const int64_t n = columns.end - columns.begin;
    for (int64_t r = 0; r < ggml_nrows(dst); ++r) {
        std::fill_n(f32_row(dst, r) + columns.begin, n, 0.0F);
    }
    std::vector<float> gathered;
    Matrix product;
    for (int64_t e = 0; e < w->ne[2] && n > 0; ++e) {
        const std::span<const ExpertPair> pairs = groups.of(e);
        if (pairs.empty()) {
            continue;
        }
        gather(out_grad, pairs, 0, w->ne[1], gathered);
        const auto n_pairs = static_cast<int64_t>(pairs.size());
        const ConstView grad(gathered.data(), n_pairs, w->ne[1], Eigen::OuterStride<>(w->ne[1]));
        const auto* matrix = reinterpret_cast<const float*>(static_cast<const char*>(w->data) +
                                                            e * static_cast<int64_t>(w->nb[2]));
        const ConstView weight(
            matrix + columns.begin, w->ne[1], n,
            Eigen::OuterStride<>(static_cast<int64_t>(w->nb[1] / sizeof(float))));
        product.noalias() = grad * weight;
        for (int64_t i = 0; i < n_pairs; ++i) {
            float* to = const_cast<float*>(row_of(dst, pairs[static_cast<size_t>(i)]));  // NOLINT
            Eigen::Map<Eigen::RowVectorXf>(to + columns.begin, n) += product.row(i);
        }
    }
}

}  // namespace kernels

}  // namespace voodoo::autodiff
