#include "graph/graph.h"

#include "base/error.h"

namespace voodoo::graph {

std::vector<ValueId> Graph::weights() const {
    std::vector<ValueId> ids;
    for (ValueId id = 0; id < size(); ++id) {
        if ((*this)[id].kind == ValueKind::weight) ids.push_back(id);
    }
    return ids;
}

namespace {

void verify_view(const Graph& graph, ValueId id) {
    const Value& value = graph[id];
    VOODOO_CHECK(value.src.size() == 1, "view {} ({}) has {} sources", id, value.name,
                 value.src.size());
    const Value& root = graph[value.src[0]];
    VOODOO_CHECK(root.kind != ValueKind::view, "view {} ({}) of a view", id, value.name);
    if (value.n_elements() == 0)
        return;  // e.g. the part without rotary embedding of a head that has none
    int64_t last = value.offset;
    for (size_t d = 0; d < GGML_MAX_DIMS; ++d) last += (value.ne[d] - 1) * value.stride[d];
    VOODOO_CHECK(value.offset >= 0 && last < root.n_elements(), "view {} ({}) leaves its root {}",
                 id, value.name, root.name);
}

}  // namespace

void verify(const Graph& graph) {
    VOODOO_CHECK(graph.output >= 0 && graph.output < graph.size(), "graph has no output");
    for (ValueId id = 0; id < graph.size(); ++id) {
        const Value& value = graph[id];
        for (const ValueId src : value.src) {
            VOODOO_CHECK(src == kNoValue || (src >= 0 && src < id),
                         "value {} ({}) uses value {} before it exists", id, value.name, src);
        }
        VOODOO_CHECK(!value.is_leaf() || value.src.empty(), "leaf {} ({}) has sources", id,
                     value.name);
        if (value.kind == ValueKind::view) verify_view(graph, id);
        if (value.kind == ValueKind::constant) {
            const size_t expected = ggml_row_size(value.type, value.ne[0]) *
                                    static_cast<size_t>(value.ne[1] * value.ne[2] * value.ne[3]);
            VOODOO_CHECK(value.data && value.data->size() == expected,
                         "constant {} ({}) lacks its data", id, value.name);
        }
    }
    const Value& output = graph[graph.output];
    VOODOO_CHECK(
        output.type == GGML_TYPE_F32 && output.ne[1] == graph.n_tokens && output.ne[2] == 1,
        "output {} is not [n_vocab, n_tokens]", output.name);
}

std::string op_label(const Value& value) {
    switch (value.kind) {
        case ValueKind::weight:
            return "weight";
        case ValueKind::tokens:
            return "tokens";
        case ValueKind::constant:
            return "constant";
        case ValueKind::zeros:
            return "zeros";
        case ValueKind::view:
            return "view";
        case ValueKind::op:
            break;
    }
    if (value.op == GGML_OP_UNARY) {
        return fmt::format("UNARY({})",
                           ggml_unary_op_name(static_cast<ggml_unary_op>(value.op_params[0])));
    }
    if (value.op == GGML_OP_GLU) {
        return fmt::format("GLU({})",
                           ggml_glu_op_name(static_cast<ggml_glu_op>(value.op_params[0])));
    }
    return ggml_op_name(value.op);
}

std::string dump(const Graph& graph) {
    std::string text;
    for (ValueId id = 0; id < graph.size(); ++id) {
        const Value& value = graph[id];
        text += fmt::format("%{} = {} {} [{}, {}, {}, {}]", id, op_label(value),
                            ggml_type_name(value.type), value.ne[0], value.ne[1], value.ne[2],
                            value.ne[3]);
        if (value.kind == ValueKind::view) {
            text += fmt::format(" strides [{}, {}, {}, {}] + {}", value.stride[0], value.stride[1],
                                value.stride[2], value.stride[3], value.offset);
        }
        for (const ValueId src : value.src)
            text += src == kNoValue ? " -" : fmt::format(" %{}", src);
        text += fmt::format("  # {}{}\n", value.name, id == graph.output ? " (output)" : "");
    }
    return text;
}

}  // namespace voodoo::graph
