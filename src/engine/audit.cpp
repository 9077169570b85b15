#include "engine/audit.h"

#include <memory>
#include <unordered_set>

#include "base/error.h"
#include "graph/instantiate.h"

namespace voodoo::engine {

namespace {

/// Ops that no gradient has to pass, but whose models are not checked against llama.cpp: a sparse
/// attention selects by its indexer, and a weight's change that moves the selection has an effect
/// that no gradient shows.
constexpr ggml_op kUnchecked[] = {GGML_OP_LIGHTNING_INDEXER};

std::vector<autodiff::Unsupported> unchecked_ops(const graph::Graph& graph) {
    std::vector<autodiff::Unsupported> list;
    for (const ggml_op op : kUnchecked) {
        int count = 0;
        for (const graph::Value& value : graph.values)
            count += value.kind == graph::ValueKind::op && value.op == op ? 1 : 0;
        if (count > 0) list.push_back({ggml_op_name(op), "selection is not checked yet", count});
    }
    return list;
}

}  // namespace

std::vector<autodiff::Unsupported> audit(
    const graph::Graph& graph, const std::function<bool(const std::string&)>& wants_gradient) {
    const size_t n_tensors = 64 + 3 * static_cast<size_t>(graph.size());
    const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
        ggml_init({graph::context_size_bytes(n_tensors), nullptr, true}), ggml_free);
    if (!context) throw Error(ErrorKind::out_of_memory, "no memory for a graph");
    graph::InstantiateOptions options;
    options.weight_type = [](graph::ValueId) { return GGML_TYPE_F32; };
    const graph::Instance instance =
        graph::instantiate(graph, context.get(), 0, graph.output + 1, options);
    std::unordered_set<const ggml_tensor*> wanted;
    for (const graph::ValueId id : instance.leaves) {
        if (graph[id].kind != graph::ValueKind::weight) continue;
        if (!wants_gradient || wants_gradient(graph[id].name)) wanted.insert(instance[id]);
    }
    const std::vector<const ggml_tensor*> nodes(instance.nodes.begin(), instance.nodes.end());
    std::vector<autodiff::Unsupported> list =
        autodiff::audit(nodes, [&](const ggml_tensor* t) { return wanted.contains(t); });
    for (auto& unchecked : unchecked_ops(graph)) list.push_back(std::move(unchecked));
    return list;
}

std::string describe(const std::vector<autodiff::Unsupported>& unsupported) {
    std::string text;
    for (const auto& entry : unsupported) {
        if (!text.empty()) text += "; ";
        text += fmt::format("{} x{} ({})", entry.op, entry.count, entry.detail);
    }
    return text;
}

}  // namespace voodoo::engine
