/// Ops that only move elements; each gradient moves them back.
///
/// CPY, DUP, CONT  y = x in another layout, shape or float type: x_grad = out_grad in x's shape
/// RESHAPE         x_grad = out_grad reshaped
/// PERMUTE         x_grad = inverse permutation of out_grad; TRANSPOSE is its own inverse
/// VIEW            y = strided window of the contiguous src[0]:
///                 x_grad = out_grad at the window's place, 0 elsewhere. A window that covers all
///                 of src[0] is only a permutation; windows of one root are gathered in one node.
/// PAD             x_grad = the window of out_grad that x fills
/// TRI             keeps a triangle: x_grad = the same triangle of out_grad
/// CONCAT          x_grads = the two windows of out_grad
/// Constant: the destination of CPY (its old values are gone). Refused: windows whose elements
/// overlap (stride 0 included), windows of a non-contiguous or non-F32 source, circular padding.
/// Needs: nothing. Checked in tests/autodiff/gradcheck/view_cases.cpp
#include <algorithm>
#include <numeric>
#include <vector>

#include "autodiff/kernels.h"
#include "autodiff/rules/params.h"
#include "autodiff/rules/rules.h"
#include "base/error.h"

namespace voodoo::autodiff::rules {

namespace {

/// The window of a VIEW node with dims in rising order of stride; dims of size 1 come first with
/// stride 1. `order[d]` is the view's dim at sorted place d.
struct SortedWindow {
    kernels::Window window;
    std::array<int, 4> order;
};

int64_t offset_in_root_bytes(const ggml_tensor* node) {
    // view_offs counts from the tensor that owns the memory, which may lie above src[0].
    const ggml_tensor* root = node->src[0];
    return static_cast<int64_t>(node->view_offs) -
           (root->view_src != nullptr ? static_cast<int64_t>(root->view_offs) : 0);
}

SortedWindow sorted_window(const ggml_tensor* node) {
    SortedWindow out{};
    const auto unit = static_cast<int64_t>(ggml_type_size(node->type));
    std::iota(out.order.begin(), out.order.end(), 0);
    std::stable_sort(out.order.begin(), out.order.end(), [&](int a, int b) {
        const size_t stride_a = node->ne[a] == 1 ? 0 : node->nb[a];
        const size_t stride_b = node->ne[b] == 1 ? 0 : node->nb[b];
        return stride_a < stride_b;
    });
    const std::array<int64_t, 4> dense = {1, node->ne[0], node->ne[0] * node->ne[1],
                                          node->ne[0] * node->ne[1] * node->ne[2]};
    for (int d = 0; d < 4; ++d) {
        const int from = out.order[d];
        out.window.ne[d] = node->ne[from];
        out.window.root_stride[d] =
            node->ne[from] == 1 ? 1 : static_cast<int64_t>(node->nb[from]) / unit;
        out.window.grad_stride[d] = dense[from];
    }
    out.window.root_offset = offset_in_root_bytes(node) / unit;
    return out;
}

/// Every slice of a dim ends before the next one starts.
bool overlaps(const kernels::Window& w) {
    int64_t extent = 1;
    for (int d = 0; d < 4; ++d) {
        if (w.ne[d] > 1 && w.root_stride[d] < extent) {
            return true;
        }
        extent += (w.ne[d] - 1) * w.root_stride[d];
    }
    return false;
}

/// The window as nodes of ggml: out_grad with its dims in rising stride order, contiguous.
ggml_tensor* sorted_grad(Tape& tape, const SortedWindow& sorted, ggml_tensor* grad) {
    std::array<int, 4> axis{};
    for (int d = 0; d < 4; ++d) {
        axis[sorted.order[d]] = d;
    }
    if (axis == std::array<int, 4>{0, 1, 2, 3}) {
        return grad;
    }
    return tape.contiguous_f32(
        ggml_permute(tape.context(), grad, axis[0], axis[1], axis[2], axis[3]));
}

/// base + the window by ggml_acc, where its dense dim is unit-stride; else nullptr.
ggml_tensor* accumulate_plain(Tape& tape, const SortedWindow& sorted, ggml_tensor* grad,
                              ggml_tensor* base) {
    // Drop leading dims of size 1 so that the dense one comes first; without a free dim nb0 must be
    // 1 element.
    kernels::Window w = sorted.window;
    std::vector<int> kept;
    for (int d = 0; d < 4; ++d) {
        if (w.ne[d] > 1) {
            kept.push_back(d);
        }
    }
    Shape ne = {1, 1, 1, 1};
    std::array<int64_t, 4> stride = {1, 1, 1, 1};
    size_t at = 0;
    if (!kept.empty() && w.root_stride[kept[0]] != 1) {
        at = 1;
    }
    if (kept.size() + at > 4) {
        return nullptr;
    }
    for (const int d : kept) {
        ne[at] = w.ne[d];
        stride[at] = w.root_stride[d];
        ++at;
    }
    const auto bytes = [](int64_t elements) {
        return sizeof(float) * static_cast<size_t>(elements);
    };
    ggml_tensor* dense = tape.reshape(sorted_grad(tape, sorted, grad), ne);
    return ggml_acc(tape.context(), base, dense, bytes(stride[1]), bytes(stride[2]),
                    bytes(stride[3]), bytes(w.root_offset));
}

/// One scatter node for up to kMaxWindows windows.
ggml_tensor* scatter(Tape& tape, const ggml_tensor* root, std::span<const ViewGrad> views,
                     ggml_tensor* base) {
    kernels::ScatterParams params{};
    std::vector<ggml_tensor*> args;
    for (const ViewGrad& v : views) {
        params.windows[params.n_windows++] = sorted_window(v.view).window;
        args.push_back(v.grad);
    }
    if (base != nullptr) {
        params.has_base = true;
        args.push_back(base);
    }
    return tape.custom(GGML_TYPE_F32, shape_of(root), args, kernels::scatter_windows, params);
}

/// A window of `x` with x's own strides.
ggml_tensor* window_of(Tape& tape, ggml_tensor* x, const Shape& ne, const Shape& start) {
    size_t offset = 0;
    for (int d = 0; d < 4; ++d) {
        offset += static_cast<size_t>(start[d]) * x->nb[d];
    }
    ggml_tensor* view = ggml_view_4d(tape.context(), x, ne[0], ne[1], ne[2], ne[3], x->nb[1],
                                     x->nb[2], x->nb[3], offset);
    return tape.contiguous_f32(view);
}

}  // namespace

Grads copy(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {tape.reshape(out_grad, shape_of(node->src[0]))};
}

Grads reshape(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {tape.reshape(out_grad, shape_of(node->src[0]))};
}

Grads permute(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    // axis[i]: where dim i of x went.
    std::array<int, 4> inverse{};
    for (int i = 0; i < 4; ++i) {
        inverse[param_i32(node, i)] = i;
    }
    ggml_tensor* back =
        ggml_permute(tape.context(), out_grad, inverse[0], inverse[1], inverse[2], inverse[3]);
    return {tape.contiguous_f32(back)};
}

Grads transpose(Tape& tape, const ggml_tensor* /*node*/, ggml_tensor* out_grad,
                const Needs& /*needs*/) {
    return {tape.transpose(out_grad)};
}

std::string refuse_view(const ggml_tensor* node, const Needs& /*needs*/) {
    const ggml_tensor* root = node->src[0];
    if (root == nullptr || root->type != node->type || node->type != GGML_TYPE_F32) {
        return "view of a source that is not F32";
    }
    if (!ggml_is_contiguous(root)) {
        return "view of a non-contiguous source";
    }
    for (int d = 0; d < 4; ++d) {
        if (node->ne[d] > 1 && node->nb[d] % sizeof(float) != 0) {
            return "view with a stride that is no multiple of its element";
        }
    }
    const kernels::Window w = sorted_window(node).window;
    if (overlaps(w)) {
        return "view whose elements overlap";
    }
    int64_t last = w.root_offset;
    for (int d = 0; d < 4; ++d) {
        last += (w.ne[d] - 1) * w.root_stride[d];
    }
    return w.root_offset < 0 || last >= ggml_nelements(root) ? "view that leaves its source" : "";
}

ggml_tensor* gather_windows(Tape& tape, const ggml_tensor* root, std::span<const ViewGrad> views,
                            ggml_tensor* base) {
    std::vector<ViewGrad> partial;
    for (const ViewGrad& v : views) {
        // As many elements without overlap inside the root: all of it, permuted.
        if (ggml_nelements(v.view) != ggml_nelements(root)) {
            partial.push_back(v);
            continue;
        }
        ggml_tensor* whole =
            tape.reshape(sorted_grad(tape, sorted_window(v.view), v.grad), shape_of(root));
        base = base == nullptr ? whole : ggml_add(tape.context(), base, whole);
    }
    std::span<const ViewGrad> rest = partial;
    while (!rest.empty()) {
        if (!tape.options().cpu_custom_ops) {
            ggml_tensor* start = base == nullptr ? tape.zeros(shape_of(root)) : base;
            ggml_tensor* sum =
                accumulate_plain(tape, sorted_window(rest[0].view), rest[0].grad, start);
            if (sum != nullptr) {
                base = sum;
                rest = rest.subspan(1);
                continue;
            }
        }
        const size_t n =
            tape.options().cpu_custom_ops ? std::min<size_t>(rest.size(), kernels::kMaxWindows) : 1;
        base = scatter(tape, root, rest.first(n), base);
        rest = rest.subspan(n);
    }
    return base;
}

Grads view(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    const ViewGrad one{node, out_grad};
    return {gather_windows(tape, node->src[0], {&one, 1}, nullptr)};
}

std::string refuse_pad(const ggml_tensor* node, const Needs& /*needs*/) {
    return param_i32(node, 8) == 0 ? "" : "circular padding";
}

Grads pad(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    const Shape start = {param_i32(node, 0), param_i32(node, 2), param_i32(node, 4),
                         param_i32(node, 6)};
    return {window_of(tape, out_grad, shape_of(node->src[0]), start)};
}

Grads tri(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& /*needs*/) {
    return {ggml_tri(tape.context(), out_grad, static_cast<ggml_tri_type>(param_i32(node, 0)))};
}

Grads concat(Tape& tape, const ggml_tensor* node, ggml_tensor* out_grad, const Needs& needs) {
    Shape start{};
    Grads grads{};
    if (needs[0]) {
        grads[0] = window_of(tape, out_grad, shape_of(node->src[0]), start);
    }
    if (needs[1]) {
        const int dim = param_i32(node, 0);
        start[dim] = node->src[0]->ne[dim];
        grads[1] = window_of(tape, out_grad, shape_of(node->src[1]), start);
    }
    return grads;
}

}  // namespace voodoo::autodiff::rules
