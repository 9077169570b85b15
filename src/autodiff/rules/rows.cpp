/// Rows picked and written by index; index tensors are [n, b2, b3], I32 or I64.
///
/// GET_ROWS  y[., i, b2, b3] = a[., idx[i, b2, b3], b2, b3]
///   a_grad = sum of the out_grad rows that were read from each row of a
/// SET_ROWS  y = base, but y[., idx[i, b2, b3], b2, b3] = b[., i, b2, b3]  (idx repeats over b2,
/// b3)
///   b_grad    = the rows of out_grad at idx (no index twice: ggml's own result is undefined then)
///   base_grad = out_grad with those rows zeroed
/// Needs: idx. Checked in tests/autodiff/gradcheck/row_cases.cpp
#include <cstring>

#include "autodiff/kernels.h"
#include "autodiff/rules/rules.h"

namespace voodoo::autodiff::rules {

namespace {

/// Index of row i of batch (b2, b3); the index tensor repeats over the batches.
int64_t index_at(const ggml_tensor* indices, int64_t i, int64_t b2, int64_t b3) {
    const char* at = static_cast<const char*>(indices->data) + i * indices->nb[0] +
                     b2 % indices->ne[1] * indices->nb[1] + b3 % indices->ne[2] * indices->nb[2];
    if (indices->type == GGML_TYPE_I64) {
        int64_t wide = 0;
        std::memcpy(&wide, at, sizeof(wide));
        return wide;
    }
    int32_t narrow = 0;
    std::memcpy(&narrow, at, sizeof(narrow));
    return narrow;
}

/// dst (the table's gradient) = sum of rows of src[0] by src[1]. Each thread owns a range of table
/// rows.
void add_rows_kernel(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const ggml_tensor* grad = dst->src[0];
    const ggml_tensor* indices = dst->src[1];
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    auto* out = static_cast<float*>(dst->data);
    const int64_t n = dst->ne[0];
    std::fill(out + rows.begin * n, out + rows.end * n, 0.0F);
    const int64_t n_rows = ggml_nrows(grad);
    for (int64_t r = 0; r < n_rows; ++r) {
        const int64_t i = r % grad->ne[1];
        const int64_t b2 = r / grad->ne[1] % grad->ne[2];
        const int64_t b3 = r / grad->ne[1] / grad->ne[2];
        const int64_t to = index_at(indices, i, b2, b3) + dst->ne[1] * (b2 + dst->ne[2] * b3);
        if (to < rows.begin || to >= rows.end) {
            continue;
        }
        const float* from = kernels::f32_row(grad, r);
        for (int64_t c = 0; c < n; ++c) {
            out[to * n + c] += from[c];
        }
    }
}

/// dst = rows of src[0] at src[1].
void pick_rows_kernel(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const ggml_tensor* grad = dst->src[0];
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    const int64_t n = dst->ne[0];
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t b2 = r / dst->ne[1] % dst->ne[2];
        const int64_t b3 = r / dst->ne[1] / dst->ne[2];
        const int64_t from =
            index_at(dst->src[1], r % dst->ne[1], b2, b3) + grad->ne[1] * (b2 + grad->ne[2] * b3);
        const float* row = kernels::f32_row(grad, from);
        std::copy(row, row + n, kernels::f32_row(dst, r));
    }
}

/// dst = src[0] with the rows at src[1] set to 0.
void clear_rows_kernel(ggml_tensor* dst, int ith, int nth, void* /*params*/) {
    const ggml_tensor* indices = dst->src[1];
    const kernels::Range rows = kernels::share(ggml_nrows(dst), ith, nth);
    const int64_t n = dst->ne[0];
    auto* out = static_cast<float*>(dst->data);
    const auto* grad = static_cast<const float*>(dst->src[0]->data);
    std::copy(grad + rows.begin * n, grad + rows.end * n, out + rows.begin * n);
    for (int64_t b3 = 0; b3 < dst->ne[3]; ++b3) {
        for (int64_t b2 = 0; b2 < dst->ne[2]; ++b2) {
            for (int64_t i = 0; i < indices->ne[0]; ++i) {
                const int64_t at =
                    index_at(indices, i, b2, b3) + dst->ne[1] * (b2 + dst->ne[2] * b3);
                if (at >= rows.begin && at < rows.end) {
                    std::fill(out + at * n, out + (at + 1) * n, 0.0F);
                }
            }
        }
    }
}

/// ggml_get_rows takes these indices as they are: one index row per batch.
bool indices_match(const ggml_tensor* indices, const ggml_tensor* rows) {
    return indices->ne[1] == rows->ne[2] && indices->ne[2] == rows->ne[3];
}

}  // namespace

ggml_tensor* add_rows(Tape& tape, const ggml_tensor* table, ggml_tensor* rows,
                      ggml_tensor* indices) {
    const bool is_matrix = table->ne[2] == 1 && table->ne[3] == 1;
    if (!tape.options().cpu_custom_ops && is_matrix) {
        auto* shape = const_cast<ggml_tensor*>(table);  // NOLINT: read for its shape only
        return ggml_get_rows_back(tape.context(), rows, tape.constant_i32(indices), shape);
    }
    ggml_tensor* const args[] = {rows, indices};
    return tape.custom(GGML_TYPE_F32, shape_of(table), args, add_rows_kernel, kernels::NoParams{});
}

Grads get_rows(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {add_rows(tape, node->src[0], out_grad, node->src[1])};
}

Grads set_rows(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    ggml_tensor* rows = node->src[0];
    ggml_tensor* indices = node->src[1];
    ggml_tensor* const args[] = {out_grad, indices};
    Grads grads{};
    if (needs[0]) {
        if (!tape.options().cpu_custom_ops && indices_match(indices, rows)) {
            grads[0] = ggml_get_rows(tape.context(), out_grad, tape.constant_i32(indices));
        } else {
            grads[0] = tape.custom(GGML_TYPE_F32, shape_of(rows), args, pick_rows_kernel,
                                   kernels::NoParams{});
        }
    }
    if (needs[2]) {
        grads[2] = tape.custom(GGML_TYPE_F32, shape_of(node), args, clear_rows_kernel,
                               kernels::NoParams{});
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
