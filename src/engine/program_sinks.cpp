// The custom nodes through which gradients and moments leave a program.
#include <algorithm>

#include "autodiff/experts.h"
#include "autodiff/kernels.h"
#include "engine/program.h"

namespace voodoo::engine {
namespace {

/// Rows of an expert's gradient that exist at once in each thread: few enough for its cache, as
/// they are contracted at once.
constexpr int64_t kExpertRows = 64;

}  // namespace

/// src: the whole gradient.
void Program::take_rows(ggml_tensor* node, int ith, int nth, void* data) {
    const auto* call = static_cast<const Call*>(data);
    if (call->shared->gradient_sink == nullptr) return;
    const ggml_tensor* gradient = node->src[0];
    const auto rows = autodiff::kernels::share(ggml_nrows(gradient), ith, nth);
    const auto* dw = static_cast<const float*>(gradient->data) + rows.begin * gradient->ne[0];
    if (rows.begin < rows.end)
        call->shared->gradient_sink->take(call->weight, dw, rows.begin, rows.end - rows.begin, ith);
}

/// src: the factors of experts' gradients. Each thread has its share of the rows of every expert,
/// so that the threads do as much each, whatever the routing.
void Program::take_experts(ggml_tensor* node, int ith, int nth, void* data) {
    const auto* call = static_cast<const Call*>(data);
    if (call->shared->gradient_sink == nullptr) return;
    const autodiff::ExpertFactors factors{node->src[0], node->src[1], node->src[2]};
    const int64_t n_rows = factors.out_grad->ne[0];
    const auto share = autodiff::kernels::share(n_rows, ith, nth);
    autodiff::ExpertGradient gradient(factors, call->n_matrices);
    std::vector<float> dw(static_cast<size_t>(kExpertRows * factors.x->ne[0]));
    for (int64_t e = 0; e < call->n_matrices; ++e) {
        if (!gradient.select(e, share.begin, share.end)) continue;
        for (int64_t row = share.begin; row < share.end; row += kExpertRows) {
            const int64_t n = std::min(kExpertRows, share.end - row);
            gradient.rows(row, row + n, dw.data());
            call->shared->gradient_sink->take(call->weight, dw.data(), e * n_rows + row, n, ith);
        }
    }
}

/// src: a matmul's input, and the weight, whose matrices the input's outer dims repeat.
void Program::take_moments(ggml_tensor* node, int ith, int nth, void* data) {
    const auto* call = static_cast<const Call*>(data);
    if (call->shared->moment_sink == nullptr) return;
    const ggml_tensor* x = node->src[0];
    const ggml_tensor* w = node->src[1];
    const auto stride = static_cast<int64_t>(x->nb[1] / sizeof(float));
    if (call->n_matrices == 1) {
        call->shared->moment_sink->take(call->weight, 0, static_cast<const float*>(x->data),
                                        ggml_nrows(x), stride, ith, nth);
        return;
    }
    for (int64_t i = 0; i < x->ne[2] * x->ne[3]; ++i) {
        const int64_t i2 = i % x->ne[2], i3 = i / x->ne[2];
        const int64_t matrix = i2 / (x->ne[2] / w->ne[2]) + i3 / (x->ne[3] / w->ne[3]) * w->ne[2];
        call->shared->moment_sink->take(call->weight, matrix,
                                        autodiff::kernels::f32_row(x, i * x->ne[1]), x->ne[1],
                                        stride, ith, nth);
    }
}

/// src: MUL_MAT_ID's input and ids.
void Program::take_routed_moments(ggml_tensor* node, int ith, int nth, void* data) {
    const auto* call = static_cast<const Call*>(data);
    if (call->shared->moment_sink == nullptr) return;
    const ggml_tensor* x = node->src[0];
    const autodiff::ExpertGroups groups(node->src[1], call->n_matrices);
    for (int64_t e = 0; e < call->n_matrices; ++e) {
        for (const autodiff::ExpertPair& pair : groups.of(e)) {
            const float* row =
                autodiff::kernels::f32_row(x, pair.slot % x->ne[1] + x->ne[1] * pair.token);
            call->shared->moment_sink->take(call->weight, e, row, 1, x->ne[0], ith, nth);
        }
    }
}

}  // namespace voodoo::engine
