#include "graph/instantiate.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "base/error.h"

namespace voodoo::graph {
namespace {

double exact_gelu(double x) {
    return 0.5 * x *
           (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * x * (1.0 + 0.044715 * x * x)));
}
double exact_gelu_quick(double x) {
    return x / (1.0 + std::exp(-1.702 * x));
}

float* float_row(ggml_tensor* t, int64_t row) {
    const int64_t i1 = row % t->ne[1], i2 = row / t->ne[1] % t->ne[2],
                  i3 = row / (t->ne[1] * t->ne[2]);
    return reinterpret_cast<float*>(
        static_cast<char*>(t->data) + static_cast<size_t>(i1) * t->nb[1] +
        static_cast<size_t>(i2) * t->nb[2] + static_cast<size_t>(i3) * t->nb[3]);
}

template <double (*kFunction)(double)>
void exact_unary_op(ggml_tensor* dst, int ith, int nth, void*) {
    for (int64_t row = ith; row < ggml_nrows(dst); row += nth) {
        const float* x = float_row(dst->src[0], row);
        float* y = float_row(dst, row);
        for (int64_t i = 0; i < dst->ne[0]; ++i) y[i] = static_cast<float>(kFunction(x[i]));
    }
}

/// Gated form: src[1] is the gate's partner, or the halves of src[0] (userdata != nullptr:
/// swapped).
template <double (*kFunction)(double)>
void exact_glu_op(ggml_tensor* dst, int ith, int nth, void* swapped) {
    for (int64_t row = ith; row < ggml_nrows(dst); row += nth) {
        const float* x = float_row(dst->src[0], row);
        const float* g = dst->src[1] != nullptr ? float_row(dst->src[1], row) : x + dst->ne[0];
        if (dst->src[1] == nullptr && swapped != nullptr) std::swap(x, g);
        float* y = float_row(dst, row);
        for (int64_t i = 0; i < dst->ne[0]; ++i) y[i] = static_cast<float>(kFunction(x[i]) * g[i]);
    }
}

/// The exact form of a node's op or nullptr where ggml computes it without a table.
ggml_custom_op_t exact_form(const Value& value) {
    if (value.op == GGML_OP_UNARY) {
        if (value.op_params[0] == GGML_UNARY_OP_GELU) return &exact_unary_op<exact_gelu>;
        if (value.op_params[0] == GGML_UNARY_OP_GELU_QUICK)
            return &exact_unary_op<exact_gelu_quick>;
    }
    if (value.op == GGML_OP_GLU) {
        if (value.op_params[0] == GGML_GLU_OP_GEGLU) return &exact_glu_op<exact_gelu>;
        if (value.op_params[0] == GGML_GLU_OP_GEGLU_QUICK) return &exact_glu_op<exact_gelu_quick>;
    }
    return nullptr;
}

class Instantiator {
public:
    Instantiator(const Graph& graph, ggml_context* context, ValueId begin,
                 const InstantiateOptions& options)
        : graph_(graph), context_(context), begin_(begin), options_(options) {
        instance_.tensors.resize(static_cast<size_t>(graph.size()), nullptr);
    }

    Instance run(ValueId end) {
        for (ValueId id = begin_; id < end; ++id) {
            if (graph_[id].kind == ValueKind::op) set(id, make_op(id));
        }
        return std::move(instance_);
    }

private:
    void set(ValueId id, ggml_tensor* tensor) {
        ggml_set_name(tensor, graph_[id].name.c_str());
        instance_.tensors[static_cast<size_t>(id)] = tensor;
    }

    Shape shape(const Value& value) const {
        Shape ne = value.ne;
        if (options_.n_columns > 0 && ne[1] == graph_.n_tokens) ne[1] = options_.n_columns;
        return ne;
    }

    ggml_tensor* use(ValueId id) {
        if (id == kNoValue) return nullptr;
        if (ggml_tensor* known = instance_[id]) return known;
        const Value& value = graph_[id];
        ggml_tensor* tensor = nullptr;
        if (value.kind == ValueKind::view) {
            tensor = make_view(value);
            instance_.nodes.push_back(tensor);
        } else if (value.is_leaf()) {
            ggml_type type = value.type;
            if (value.kind == ValueKind::weight && options_.weight_type)
                type = options_.weight_type(id);
            tensor = ggml_new_tensor(context_, type, GGML_MAX_DIMS, value.ne.data());
            instance_.leaves.push_back(id);
        } else {
            VOODOO_CHECK(id < begin_, "value {} is used before it is made", id);
            tensor = ggml_new_tensor(context_, value.type, GGML_MAX_DIMS, shape(value).data());
            ggml_set_input(tensor);
            instance_.boundary.push_back(id);
        }
        set(id, tensor);
        return tensor;
    }

    ggml_tensor* make_view(const Value& value) {
        ggml_tensor* root = use(value.src[0]);
        VOODOO_CHECK(options_.n_columns == 0, "a view in a sliced range");
        const auto type_size = static_cast<int64_t>(ggml_type_size(root->type));
        const int64_t block = ggml_blck_size(root->type);
        ggml_tensor* view = ggml_view_1d(context_, root, block, 0);
        for (size_t d = 0; d < GGML_MAX_DIMS; ++d) {
            view->ne[d] = value.ne[d];
            const int64_t stride = d == 0 ? value.stride[0] * block : value.stride[d];
            VOODOO_CHECK(stride % block == 0, "a view of {} steps inside a block", value.name);
            view->nb[d] = static_cast<size_t>(stride / block * type_size);
        }
        VOODOO_CHECK(value.offset % block == 0, "a view of {} starts inside a block", value.name);
        const size_t offset = static_cast<size_t>(value.offset / block * type_size);
        view->view_offs += offset;
        std::memcpy(view->op_params, &offset, sizeof(offset));
        return view;
    }

    ggml_tensor* make_op(ValueId id) {
        const Value& value = graph_[id];
        std::vector<ggml_tensor*> src;
        for (const ValueId s : value.src) src.push_back(use(s));
        if (value.op == GGML_OP_SET_ROWS) {
            // ggml writes into its target; a copy of the old version keeps the program pure.
            ggml_tensor* target = ggml_dup(context_, src[2]);
            instance_.nodes.push_back(target);
            ggml_tensor* written = ggml_set_rows(context_, target, src[0], src[1]);
            instance_.nodes.push_back(written);
            return written;
        }
        const Shape ne = shape(value);
        if (options_.exact_gelu) {
            if (const ggml_custom_op_t function = exact_form(value)) {
                void* swapped =
                    value.op_params[1] != 0 ? this : nullptr;  // any non-null pointer is "true"
                ggml_tensor* node =
                    ggml_custom_4d(context_, value.type, ne[0], ne[1], ne[2], ne[3], src.data(),
                                   static_cast<int>(src.size()), function, GGML_N_TASKS_MAX,
                                   value.op == GGML_OP_GLU ? swapped : nullptr);
                instance_.nodes.push_back(node);
                return node;
            }
        }
        ggml_tensor* node = ggml_new_tensor(context_, value.type, GGML_MAX_DIMS, ne.data());
        node->op = value.op;
        std::memcpy(node->op_params, value.op_params.data(), sizeof(node->op_params));
        for (size_t i = 0; i < src.size(); ++i) node->src[i] = src[i];
        // A conversion names its own result as the target, as ggml_cast does.
        if (value.op == GGML_OP_CPY) node->src[1] = node;
        instance_.nodes.push_back(node);
        return node;
    }

    const Graph& graph_;
    ggml_context* context_;
    ValueId begin_;
    const InstantiateOptions& options_;
    Instance instance_;
};

bool is_row_wise_op(const Graph& graph, const Value& value) {
    const auto is_weight_row = [&](ValueId id) {
        const Value& v = graph[id];
        return v.is_leaf() && v.kind != ValueKind::tokens && v.ne[1] == 1 && v.ne[2] == 1;
    };
    switch (value.op) {
        case GGML_OP_MUL_MAT: {
            const Value& w = graph[value.src[0]];
            return w.kind == ValueKind::weight && w.ne[2] == 1 && w.ne[3] == 1;
        }
        case GGML_OP_SCALE:
        case GGML_OP_UNARY:
            return true;
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
            return is_weight_row(value.src[1]);
        default:
            return false;
    }
}

}  // namespace

Instance instantiate(const Graph& graph, ggml_context* context, ValueId begin, ValueId end,
                     const InstantiateOptions& options) {
    return Instantiator(graph, context, begin, options).run(end);
}

bool is_row_wise(const Graph& graph, ValueId begin, ValueId end) {
    for (ValueId id = begin; id < end; ++id) {
        const Value& value = graph[id];
        if (value.kind == ValueKind::view) return false;
        if (value.kind != ValueKind::op) continue;
        if (value.ne[1] != graph.n_tokens || value.ne[2] != 1 || value.ne[3] != 1) return false;
        if (!is_row_wise_op(graph, value)) return false;
    }
    return true;
}

size_t context_size_bytes(size_t n_tensors) {
    return n_tensors * ggml_tensor_overhead();
}

}  // namespace voodoo::graph
