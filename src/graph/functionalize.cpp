#include "graph/functionalize.h"

#include <cstring>
#include <map>
#include <numeric>

#include "base/error.h"

namespace voodoo::graph {
namespace {

bool is_view_op(ggml_op op) {
    return op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

Shape contiguous_strides(const Shape& ne) {
    return {1, ne[0], ne[0] * ne[1], ne[0] * ne[1] * ne[2]};
}

/// Where a tensor lies in the storage it belongs to, in elements.
struct Window {
    Shape ne{};
    Shape stride{};
    int64_t offset = 0;

    int64_t n_elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
    /// Whether it is the whole contiguous storage of n elements.
    bool covers(int64_t n) const {
        if (offset != 0 || n_elements() != n) return false;
        const Shape expected = contiguous_strides(ne);
        for (size_t d = 0; d < GGML_MAX_DIMS; ++d) {
            if (ne[d] != 1 && stride[d] != expected[d]) return false;
        }
        return true;
    }
};

class Functionalizer {
public:
    explicit Functionalizer(const Trace& trace)
        : trace_(trace), versions_(trace.tensors.size(), kNoValue) {}

    Graph run() {
        graph_.n_tokens = static_cast<int64_t>(trace_.tokens.size());
        graph_.n_sequences = trace_.n_sequences;
        for (const int node : trace_.order) {
            if (!is_view_op(tensor(node).op)) add_node(node);
        }
        VOODOO_CHECK(trace_.output >= 0, "trace has no output");
        graph_.output = read(trace_.output);
        drop_dead_values();
        verify(graph_);
        return std::move(graph_);
    }

private:
    const TraceTensor& tensor(int id) const { return trace_.tensors[static_cast<size_t>(id)]; }
    int storage(int id) const { return tensor(id).view_src >= 0 ? tensor(id).view_src : id; }

    ValueId push(Value value) {
        graph_.values.push_back(std::move(value));
        return graph_.size() - 1;
    }

    Window window(int id) const {
        const TraceTensor& t = tensor(id);
        const auto type_size = static_cast<int64_t>(ggml_type_size(t.type));
        const int64_t block = ggml_blck_size(t.type);
        const auto elements = [&](size_t bytes) {
            if (static_cast<int64_t>(bytes) % type_size != 0) {
                throw Error(ErrorKind::unsupported_model,
                            "a view does not start or step at whole elements", t.name);
            }
            return static_cast<int64_t>(bytes) / type_size * block;
        };
        Window w{t.ne, {}, elements(t.view_offset)};
        for (size_t d = 0; d < GGML_MAX_DIMS; ++d) w.stride[d] = elements(t.nb[d]);
        // Inside a block the elements are adjacent; nb[0] counts blocks.
        if (block > 1) w.stride[0] /= block;
        return w;
    }

    /// Current version of the storage that `id` (an owner) names.
    ValueId current(int id) {
        ValueId& version = versions_[static_cast<size_t>(id)];
        if (version == kNoValue) version = add_leaf(id);
        return version;
    }

    ValueId add_leaf(int id) {
        const TraceTensor& t = tensor(id);
        VOODOO_CHECK(t.op == GGML_OP_NONE, "{} ({}) is read before it is computed", t.name,
                     ggml_op_name(t.op));
        Value leaf;
        leaf.type = t.type;
        leaf.ne = t.ne;
        leaf.name = t.name;
        if (t.is_weight) {
            leaf.kind = ValueKind::weight;
            // llama.cpp may make two tensors of one name (a tied head); both are the same weight
            // here.
            const auto [known, inserted] = weights_.emplace(t.name, graph_.size());
            if (!inserted) return known->second;
        } else if (t.is_zero) {
            leaf.kind = ValueKind::zeros;
        } else {
            VOODOO_CHECK(t.data != nullptr, "leaf {} has no data", t.name);
            const bool is_tokens =
                t.type == GGML_TYPE_I32 &&
                t.data->size() == trace_.tokens.size() * sizeof(int32_t) &&
                std::memcmp(t.data->data(), trace_.tokens.data(), t.data->size()) == 0;
            leaf.kind = is_tokens ? ValueKind::tokens : ValueKind::constant;
            if (!is_tokens) leaf.data = t.data;
        }
        return push(std::move(leaf));
    }

    /// The value that a read of `id` sees now.
    ValueId read(int id) {
        const int owner = storage(id);
        const ValueId version = current(owner);
        const Window w = window(id);
        const Value& root = graph_[version];
        if (w.ne == root.ne && w.covers(root.n_elements()) && root.type == tensor(id).type)
            return version;
        if (root.type != tensor(id).type) {
            throw Error(ErrorKind::unsupported_model, "a view reads memory as another type",
                        tensor(id).name);
        }
        const auto key = std::make_tuple(version, w.ne, w.stride, w.offset);
        if (const auto known = views_.find(key); known != views_.end()) return known->second;
        Value view;
        view.kind = ValueKind::view;
        view.op = GGML_OP_VIEW;
        view.type = root.type;
        view.ne = w.ne;
        view.stride = w.stride;
        view.offset = w.offset;
        view.src = {version};
        view.name = tensor(id).name;
        const ValueId value = push(std::move(view));
        views_.emplace(key, value);
        return value;
    }

    Value op_value(int node, std::vector<ValueId> src) const {
        const TraceTensor& t = tensor(node);
        Value value;
        value.kind = ValueKind::op;
        value.op = t.op;
        value.type = t.type;
        value.ne = t.ne;
        value.op_params = t.op_params;
        value.src = std::move(src);
        value.name = t.name;
        return value;
    }

    void add_node(int node) {
        const TraceTensor& t = tensor(node);
        std::vector<ValueId> src;
        // CPY's second source is only where the result goes; SET_ROWS' third is what it writes
        // into.
        const size_t n_read = t.op == GGML_OP_CPY ? 1 : t.src.size();
        for (size_t i = 0; i < n_read; ++i) src.push_back(t.src[i] < 0 ? kNoValue : read(t.src[i]));
        Value value = op_value(node, std::move(src));
        if (t.op == GGML_OP_CPY) {
            const Value& source = graph_[value.src[0]];
            // A copy of equal type is CONT; to another type it stays CPY, whose target is made at
            // instantiation.
            if (source.type == t.type) value.op = GGML_OP_CONT;
        }
        const ValueId result = push(std::move(value));
        const int owner = storage(node);
        if (owner == node) {
            versions_[static_cast<size_t>(node)] = result;
        } else {
            write(node, owner, result);
        }
    }

    /// `result` (contiguous) replaces the window of `node` in the storage of `owner`.
    void write(int node, int owner, ValueId result) {
        const Window w = window(node);
        const ValueId before = current(owner);
        const Shape owner_ne = graph_[before].ne;
        if (w.covers(graph_[before].n_elements())) {
            versions_[static_cast<size_t>(owner)] = result;
            return;
        }
        const Value& base = graph_[before];
        if (base.type != GGML_TYPE_F32 || graph_[result].type != GGML_TYPE_F32 ||
            w.stride[0] != 1) {
            throw Error(ErrorKind::unsupported_model,
                        "a partial write that is not a row-wise F32 window", tensor(node).name);
        }
        Value set;
        set.kind = ValueKind::op;
        set.op = GGML_OP_SET;
        set.type = GGML_TYPE_F32;
        set.ne = owner_ne;
        set.src = {before, result};
        set.name = tensor(node).name + " (written)";
        // ggml_set's parameters: nb1, nb2, nb3, offset in bytes, inplace.
        for (size_t d = 1; d < GGML_MAX_DIMS; ++d) {
            set.op_params[d - 1] =
                static_cast<int32_t>(w.stride[d] * static_cast<int64_t>(sizeof(float)));
        }
        set.op_params[3] = static_cast<int32_t>(w.offset * static_cast<int64_t>(sizeof(float)));
        set.op_params[4] = 0;
        versions_[static_cast<size_t>(owner)] = push(std::move(set));
    }

    void drop_dead_values() {
        std::vector<char> alive(graph_.values.size(), 0);
        alive[static_cast<size_t>(graph_.output)] = 1;
        for (ValueId id = graph_.size() - 1; id >= 0; --id) {
            if (!alive[static_cast<size_t>(id)]) continue;
            for (const ValueId src : graph_[id].src) {
                if (src != kNoValue) alive[static_cast<size_t>(src)] = 1;
            }
        }
        std::vector<ValueId> renamed(graph_.values.size(), kNoValue);
        std::vector<Value> kept;
        for (ValueId id = 0; id < graph_.size(); ++id) {
            if (!alive[static_cast<size_t>(id)]) continue;
            renamed[static_cast<size_t>(id)] = static_cast<ValueId>(kept.size());
            Value value = std::move(graph_.values[static_cast<size_t>(id)]);
            for (ValueId& src : value.src) {
                if (src != kNoValue) src = renamed[static_cast<size_t>(src)];
            }
            kept.push_back(std::move(value));
        }
        graph_.output = renamed[static_cast<size_t>(graph_.output)];
        graph_.values = std::move(kept);
    }

    const Trace& trace_;
    Graph graph_;
    std::vector<ValueId> versions_;  // by trace tensor: newest value of the storage it owns
    std::map<std::string, ValueId> weights_;
    std::map<std::tuple<ValueId, Shape, Shape, int64_t>, ValueId> views_;
};

}  // namespace

Graph functionalize(const Trace& trace) {
    return Functionalizer(trace).run();
}

}  // namespace voodoo::graph
