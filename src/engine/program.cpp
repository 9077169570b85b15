#include "engine/program.h"

#include <algorithm>
#include <cstring>

#include "autodiff/experts.h"
#include "base/error.h"

namespace voodoo::engine {
namespace {

using graph::ValueId;
using graph::ValueKind;

size_t graph_capacity(const Segment& segment, const ProgramOptions& options) {
    const auto n = static_cast<size_t>(segment.end - segment.begin);
    // A vjp rule makes up to some twenty nodes.
    return 256 + n * (options.backward ? 32 : 4);
}

}  // namespace

ConstantPool::ConstantPool(const graph::Graph& graph)
    : tokens_(static_cast<size_t>(graph.n_tokens) * sizeof(int32_t)),
      tokens_bytes_(static_cast<size_t>(graph.n_tokens) * sizeof(int32_t)) {}

HostBlock& ConstantPool::block_of(const graph::Graph& graph, ValueId id) {
    const graph::Value& value = graph[id];
    if (value.kind == ValueKind::tokens) return tokens_;
    if (const auto known = blocks_.find(id); known != blocks_.end()) return known->second;
    const size_t size = ggml_row_size(value.type, value.ne[0]) *
                        static_cast<size_t>(value.ne[1] * value.ne[2] * value.ne[3]);
    HostBlock block(size);
    if (value.data) std::memcpy(block.data(), value.data->data(), size);
    size_bytes_ += block.size_bytes();
    return blocks_.emplace(id, std::move(block)).first->second;
}

void ConstantPool::bind(const graph::Graph& graph, ValueId id, ggml_tensor* tensor) {
    block_of(graph, id).bind(tensor, 0);
}

void ConstantPool::bind_as_i32(const graph::Graph& graph, ValueId id, ggml_tensor* tensor) {
    auto known = i32_blocks_.find(id);
    if (known == i32_blocks_.end()) {
        const graph::Value& value = graph[id];
        VOODOO_CHECK(value.kind == ValueKind::constant && value.type == GGML_TYPE_I64,
                     "{} is no I64 constant", value.name);
        HostBlock block(static_cast<size_t>(value.n_elements()) * sizeof(int32_t));
        const auto* from = reinterpret_cast<const int64_t*>(value.data->data());
        auto* to = reinterpret_cast<int32_t*>(block.data());
        for (int64_t i = 0; i < value.n_elements(); ++i) to[i] = static_cast<int32_t>(from[i]);
        size_bytes_ += block.size_bytes();
        known = i32_blocks_.emplace(id, std::move(block)).first;
    }
    known->second.bind(tensor, 0);
}

void ConstantPool::set_tokens(std::span<const int32_t> tokens) {
    VOODOO_CHECK(tokens.size_bytes() == tokens_bytes_, "a batch of {} tokens", tokens.size());
    std::memcpy(tokens_.data(), tokens.data(), tokens_bytes_);
}

Program::Program(ProgramShared& shared, const Segment& segment, const ProgramOptions& options)
    : shared_(shared), segment_(segment), options_(options) {
    const size_t n = graph_capacity(segment, options);
    const size_t graphs = (options.backward ? 3 : 2) * ggml_graph_overhead_custom(n, false);
    context_ = ggml_init({graph::context_size_bytes(n) + graphs, nullptr, true});
    if (context_ == nullptr) throw Error(ErrorKind::out_of_memory, "no memory for a graph");
    build_forward();
    if (options.moments) build_moments();
    if (options.backward) build_backward();
    build_graphs();
    layout_weights();
}

Program::~Program() {
    ggml_free(context_);
}

void Program::build_forward() {
    graph::InstantiateOptions options;
    options.exact_gelu = options_.exact_gelu;
    options.n_columns = options_.n_columns;
    if (!options_.stored_types) options.weight_type = [](ValueId) { return GGML_TYPE_F32; };
    instance_ = graph::instantiate(shared_.graph, context_, segment_.begin, segment_.end, options);
    for (const ValueId id : segment_.outputs) ggml_set_output(instance_[id]);
    for (const ValueId id : instance_.leaves) {
        if (shared_.graph[id].kind != ValueKind::weight) continue;
        weights_.push_back({shared_.weight_index[static_cast<size_t>(id)], instance_[id]});
    }
}

Program::Call* Program::make_call(const Weight& weight) {
    calls_.push_back(std::make_unique<Call>(
        Call{&shared_, weight.index, weight.rows->ne[2] * weight.rows->ne[3]}));
    return calls_.back().get();
}

ggml_tensor* Program::sink_node(std::initializer_list<ggml_tensor*> sources,
                                ggml_custom_op_t function, const Weight& weight) {
    std::vector<ggml_tensor*> args(sources);
    ggml_tensor* node = ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, args.data(),
                                       static_cast<int>(args.size()), function, GGML_N_TASKS_MAX,
                                       make_call(weight));
    ggml_set_output(node);
    return node;
}

void Program::build_moments() {
    std::map<const ggml_tensor*, int> leaders;  // by input
    for (ggml_tensor* node : std::vector(instance_.nodes)) {
        if (node->op != GGML_OP_MUL_MAT && node->op != GGML_OP_MUL_MAT_ID) continue;
        const Weight* weight = find_weight(node->src[0]);
        if (weight == nullptr) continue;
        ggml_tensor* x = node->src[1];
        if (options_.full_moments) {
            // One matrix of moments describes the input of one matrix only.
            if (node->op != GGML_OP_MUL_MAT || ggml_nrows(weight->rows) != weight->rows->ne[1])
                continue;
            const int leader = leaders.emplace(x, weight->index).first->second;
            shared_.moment_leader[static_cast<size_t>(weight->index)] = leader;
            if (leader == weight->index) add_full_moments(x, *weight);
            continue;
        }
        if (!ggml_is_contiguous(x)) x = ggml_cont(context_, x);
        if (node->op == GGML_OP_MUL_MAT_ID) {
            forward_roots_.push_back(sink_node({x, node->src[2]}, take_routed_moments, *weight));
        } else {
            forward_roots_.push_back(sink_node({x, weight->rows}, take_moments, *weight));
        }
    }
}

void Program::add_full_moments(ggml_tensor* x, const Weight& weight) {
    const auto take = [](ggml_tensor* node, int ith, int nth, void* data) {
        const auto* call = static_cast<const Call*>(data);
        if (call->shared->moment_sink == nullptr) return;
        const ggml_tensor* h = node->src[0];
        call->shared->moment_sink->take_full(call->weight, static_cast<const float*>(h->data),
                                             h->src[0]->ne[0], ith, nth);
    };
    // [T][n] -> [n][T], so that both operands of the product have T as their rows' length.
    const int64_t n = x->ne[0];
    if (!ggml_is_contiguous(x)) x = ggml_cont(context_, x);
    ggml_tensor* columns = ggml_reshape_2d(context_, x, n, ggml_nelements(x) / n);
    columns = ggml_cont(context_, ggml_transpose(context_, columns));
    ggml_tensor* h = ggml_mul_mat(context_, columns, columns);
    forward_roots_.push_back(sink_node({h}, take, weight));
}

std::vector<int> Program::weight_indices() const {
    std::vector<int> indices;
    for (const Weight& weight : weights_) indices.push_back(weight.index);
    return indices;
}

Program::Weight* Program::find_weight(const ggml_tensor* rows) {
    const auto found = std::find_if(weights_.begin(), weights_.end(),
                                    [&](const Weight& w) { return w.rows == rows; });
    return found == weights_.end() ? nullptr : &*found;
}

void Program::build_backward() {
    autodiff::TapeHooks hooks;
    hooks.constant_i32 = [this](const ggml_tensor* leaf) -> ggml_tensor* {
        for (const ValueId id : instance_.leaves) {
            if (instance_[id] != leaf) continue;
            ggml_tensor* copy = ggml_new_tensor(context_, GGML_TYPE_I32, GGML_MAX_DIMS, leaf->ne);
            i32_constants_.emplace_back(id, copy);
            return copy;
        }
        throw Error(ErrorKind::unsupported_op, "indices that are computed", leaf->name);
    };
    hooks.transposed_weight = [this](const ggml_tensor* w) -> ggml_tensor* {
        Weight* weight = find_weight(w);
        if (weight == nullptr) return nullptr;
        if (weight->transposed == nullptr) {
            weight->transposed =
                ggml_new_tensor_4d(context_, GGML_TYPE_F32, w->ne[1], w->ne[0], w->ne[2], w->ne[3]);
            ggml_format_name(weight->transposed, "%s^T", w->name);
        }
        return weight->transposed;
    };
    tape_ = std::make_unique<autodiff::Tape>(context_, autodiff::TapeOptions{}, std::move(hooks));

    std::vector<std::pair<ggml_tensor*, ggml_tensor*>> seeds;
    for (const ValueId id : segment_.outputs) {
        if (!shared_.needs_gradient[static_cast<size_t>(id)]) continue;
        ggml_tensor* seed = ggml_dup_tensor(context_, instance_[id]);
        ggml_set_input(seed);
        seeds_.emplace(id, seed);
        seeds.emplace_back(instance_[id], seed);
    }
    std::vector<ggml_tensor*> wanted;
    for (const ValueId id : instance_.boundary) {
        if (shared_.needs_gradient[static_cast<size_t>(id)]) wanted.push_back(instance_[id]);
    }
    for (const ValueId id : instance_.leaves) {
        if (shared_.needs_gradient[static_cast<size_t>(id)]) wanted.push_back(instance_[id]);
    }
    add_gradient_nodes(autodiff::backward(*tape_, instance_.nodes, seeds, wanted));
}

void Program::add_gradient_nodes(const autodiff::BackwardResult& result) {
    // Roots in the order in which their gradients were made, so that each is consumed before the
    // next exists.
    std::unordered_map<const ggml_tensor*, size_t> made;
    for (ggml_tensor* t = ggml_get_first_tensor(context_); t != nullptr;
         t = ggml_get_next_tensor(context_, t)) {
        made.emplace(t, made.size());
    }
    std::vector<std::pair<size_t, ggml_tensor*>> roots;
    for (const ValueId id : instance_.boundary) {
        ggml_tensor* gradient = result.find(instance_[id]);
        if (gradient == nullptr) continue;
        ggml_set_output(gradient);
        input_grads_.emplace(id, gradient);
        roots.emplace_back(made.at(gradient), gradient);
    }
    for (Weight& weight : weights_) {
        ggml_tensor* gradient = result.find(weight.rows);
        if (gradient == nullptr) continue;
        const size_t order = made.at(gradient);
        if (options_.accumulate) {
            weight.accumulator =
                ggml_new_tensor(context_, GGML_TYPE_F32, GGML_MAX_DIMS, weight.rows->ne);
            gradient = ggml_add_inplace(context_, weight.accumulator, gradient);
        } else {
            gradient = gradient_sink_node(gradient, weight);
        }
        roots.emplace_back(order, gradient);
    }
    std::stable_sort(roots.begin(), roots.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& root : roots) backward_roots_.push_back(root.second);
}

ggml_tensor* Program::gradient_sink_node(ggml_tensor* gradient, const Weight& weight) {
    // Experts: from the factors, so that the node that would hold all of the gradient is never part
    // of a graph.
    if (const autodiff::ExpertFactors* factors = tape_->find_expert_gradient(gradient))
        return sink_node({factors->x, factors->out_grad, factors->ids}, take_experts, weight);
    return sink_node({gradient}, take_rows, weight);
}

void Program::build_graphs() {
    const size_t n = graph_capacity(segment_, options_);
    all_ = ggml_new_graph_custom(context_, n, false);
    for (ggml_tensor* node : instance_.nodes) ggml_build_forward_expand(all_, node);
    for (ggml_tensor* node : forward_roots_) ggml_build_forward_expand(all_, node);
    const int n_forward = ggml_graph_n_nodes(all_);
    for (ggml_tensor* node : backward_roots_) ggml_build_forward_expand(all_, node);
    forward_ = ggml_new_graph_custom(context_, n, false);
    for (int i = 0; i < n_forward; ++i) ggml_graph_add_node(forward_, ggml_graph_node(all_, i));
    if (!options_.backward) return;
    backward_ = ggml_new_graph_custom(context_, n, false);
    for (int i = n_forward; i < ggml_graph_n_nodes(all_); ++i)
        ggml_graph_add_node(backward_, ggml_graph_node(all_, i));
}

void Program::layout_weights() {
    const auto place = [this](ggml_tensor* tensor, size_t& offset) {
        if (tensor == nullptr) return;
        offset = weight_bytes_;
        weight_bytes_ += HostBlock::aligned(ggml_nbytes(tensor));
        external_.push_back(tensor);
    };
    for (Weight& weight : weights_) {
        place(weight.rows, weight.offset);
        place(weight.transposed, weight.transposed_offset);
        place(weight.accumulator, weight.accumulator_offset);
    }
}

void Program::activate(HostBlock& weights, ggml_gallocr_t allocator) {
    VOODOO_CHECK(weights.size_bytes() >= weight_bytes_, "weights do not fit their block");
    // Forget the addresses of the last activation: another program may have used that memory.
    for (ggml_tensor* t = ggml_get_first_tensor(context_); t != nullptr;
         t = ggml_get_next_tensor(context_, t)) {
        t->data = nullptr;
        t->buffer = nullptr;
    }
    for (Weight& weight : weights_) {
        weight.loaded_version = 0;
        weights.bind(weight.rows, weight.offset);
        if (weight.transposed != nullptr) weights.bind(weight.transposed, weight.transposed_offset);
        if (weight.accumulator != nullptr)
            weights.bind(weight.accumulator, weight.accumulator_offset);
    }
    for (const ValueId id : instance_.leaves) {
        if (shared_.graph[id].kind != ValueKind::weight)
            shared_.constants.bind(shared_.graph, id, instance_[id]);
    }
    for (const auto& [id, tensor] : i32_constants_)
        shared_.constants.bind_as_i32(shared_.graph, id, tensor);
    // Planned anew: alloc_graph() alone would keep the plan of another program's graph that has as
    // many nodes of the same sizes, though values that must not share memory there may do so here.
    if (!ggml_gallocr_reserve(allocator, all_) || !ggml_gallocr_alloc_graph(allocator, all_)) {
        throw Error(ErrorKind::out_of_memory, "no memory for the activations of a segment",
                    "engine", "lower --memory, the chunk length or the number of chunks per step");
    }
}

void Program::load_weights(WeightSource& source) {
    for (Weight& weight : weights_) {
        const uint64_t version = source.version(weight.index);
        if (version != 0 && version == weight.loaded_version) continue;
        weight.loaded_version = 0;  // should loading fail
        if (options_.stored_types) {
            const auto bytes = source.stored(weight.index);
            VOODOO_CHECK(bytes.size() == ggml_nbytes(weight.rows), "{} has {} stored bytes",
                         weight.rows->name, bytes.size());
            std::memcpy(weight.rows->data, bytes.data(), bytes.size());
        } else {
            float* transposed = weight.transposed == nullptr
                                    ? nullptr
                                    : static_cast<float*>(weight.transposed->data);
            source.load(weight.index, static_cast<float*>(weight.rows->data), transposed);
        }
        weight.loaded_version = version;
    }
}

void Program::forward() {
    shared_.backend.compute(forward_);
}

void Program::backward() {
    VOODOO_CHECK(backward_ != nullptr, "a program without backward pass");
    shared_.backend.compute(backward_);
}

ggml_tensor* Program::seed(ValueId id) const {
    const auto found = seeds_.find(id);
    return found == seeds_.end() ? nullptr : found->second;
}

ggml_tensor* Program::input_grad(ValueId id) const {
    const auto found = input_grads_.find(id);
    return found == input_grads_.end() ? nullptr : found->second;
}

void Program::clear_accumulated() {
    for (const Weight& weight : weights_) {
        if (weight.accumulator != nullptr)
            std::memset(weight.accumulator->data, 0, ggml_nbytes(weight.accumulator));
    }
}

std::vector<Program::Accumulated> Program::accumulated() const {
    std::vector<Accumulated> result;
    for (const Weight& weight : weights_) {
        if (weight.accumulator == nullptr) continue;
        result.push_back({weight.index, static_cast<const float*>(weight.accumulator->data)});
    }
    return result;
}

}  // namespace voodoo::engine
