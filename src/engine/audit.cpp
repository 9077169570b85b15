#include "engine/audit.h"

#include <memory>
#include <unordered_set>

#include "base/error.h"
#include "graph/instantiate.h"

namespace voodoo::engine {

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
    return autodiff::audit(nodes, [&](const ggml_tensor* t) { return wanted.contains(t); });
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
