// One segment compiled: its forward and backward nodes in a ggml context, bound to the engine's
// memory. Internal to the engine.
#pragma once

#include <ggml-alloc.h>
#include <ggml.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <vector>

#include "autodiff/vjp.h"
#include "device/backend.h"
#include "engine/host_block.h"
#include "engine/outlets.h"
#include "engine/segments.h"
#include "graph/instantiate.h"

namespace voodoo::engine {

/// Leaves that do not change: masks, positions, indices, zeros; and the token ids. Shared by all
/// programs.
class ConstantPool {
public:
    ConstantPool(const graph::Graph& graph);
    /// Binds a tokens, constant or zeros leaf.
    void bind(const graph::Graph& graph, graph::ValueId id, ggml_tensor* tensor);
    /// Binds `tensor` (I32) to the values of the I64 constant `id`.
    void bind_as_i32(const graph::Graph& graph, graph::ValueId id, ggml_tensor* tensor);
    void set_tokens(std::span<const int32_t> tokens);
    uint64_t size_bytes() const { return size_bytes_; }

private:
    HostBlock& block_of(const graph::Graph& graph, graph::ValueId id);

    std::map<graph::ValueId, HostBlock> blocks_;
    std::map<graph::ValueId, HostBlock> i32_blocks_;
    HostBlock tokens_;
    size_t tokens_bytes_ = 0;
    uint64_t size_bytes_ = 0;
};

/// What all programs of an executor share.
struct ProgramShared {
    const graph::Graph& graph;
    const device::Backend& backend;
    ConstantPool& constants;
    /// By value id: index of the weight, or -1.
    const std::vector<int>& weight_index;
    /// By value id: whether a gradient has to flow to it.
    const std::vector<char>& needs_gradient;
    GradientSink* gradient_sink = nullptr;  ///< set for the time of a step
    MomentSink* moment_sink = nullptr;      ///< set for the time of a forward
    std::vector<int> moment_leader{};       ///< by weight, filled in by programs with full moments
};

struct ProgramOptions {
    bool backward = false;
    bool moments = false;
    bool full_moments = false;
    bool exact_gelu = false;
    bool stored_types = false;
    /// Gradients of weights are added up in memory of the program instead of going to the sink.
    bool accumulate = false;
    int64_t n_columns = 0;
};

class Program {
public:
    Program(ProgramShared& shared, const Segment& segment, const ProgramOptions& options);
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    const Segment& segment() const { return segment_; }
    std::vector<int> weight_indices() const;
    /// Bytes of F32 weights, transposes and accumulated gradients.
    size_t weight_bytes() const { return weight_bytes_; }

    /// Binds weights into `weights` (at least weight_bytes()) and allocates activations with
    /// `allocator`. Called again whenever another program has used them meanwhile.
    void activate(HostBlock& weights, ggml_gallocr_t allocator);
    /// Loads the weights whose version is not the one in memory.
    void load_weights(WeightSource& source);

    void forward();
    void backward();

    /// Memory of an input, output or cotangent; null where there is none.
    ggml_tensor* value(graph::ValueId id) const { return instance_[id]; }
    ggml_tensor* seed(graph::ValueId id) const;
    ggml_tensor* input_grad(graph::ValueId id) const;

    /// Accumulated gradients (ProgramOptions::accumulate).
    void clear_accumulated();
    struct Accumulated {
        int weight;
        const float* gradient;
    };
    std::vector<Accumulated> accumulated() const;

private:
    struct Weight {
        int index;
        ggml_tensor* rows = nullptr;
        ggml_tensor* transposed = nullptr;
        ggml_tensor* accumulator = nullptr;
        size_t offset = 0, transposed_offset = 0, accumulator_offset = 0;
        uint64_t loaded_version = 0;  // WeightSource::version of what is in memory; 0: nothing
    };
    struct Call {  // userdata of the sinks' custom nodes
        ProgramShared* shared;
        int weight;
        int64_t n_matrices = 1;  // of the weight
    };

    void build_forward();
    void build_moments();
    void add_full_moments(ggml_tensor* x, const Weight& weight);
    void build_backward();
    void add_gradient_nodes(const autodiff::BackwardResult& result);
    void build_graphs();
    void layout_weights();
    Weight* find_weight(const ggml_tensor* rows);
    Call* make_call(const Weight& weight);
    static void take_rows(ggml_tensor* node, int ith, int nth, void* call);
    static void take_experts(ggml_tensor* node, int ith, int nth, void* call);
    static void take_moments(ggml_tensor* node, int ith, int nth, void* call);
    static void take_routed_moments(ggml_tensor* node, int ith, int nth, void* call);
    ggml_tensor* sink_node(std::initializer_list<ggml_tensor*> sources, ggml_custom_op_t function,
                           const Weight& weight);
    ggml_tensor* gradient_sink_node(ggml_tensor* gradient, const Weight& weight);

    ProgramShared& shared_;
    Segment segment_;
    ProgramOptions options_;
    ggml_context* context_ = nullptr;
    graph::Instance instance_;
    std::unique_ptr<autodiff::Tape> tape_;
    std::vector<Weight> weights_;
    std::vector<std::unique_ptr<Call>> calls_;
    std::map<graph::ValueId, ggml_tensor*> seeds_;
    std::map<graph::ValueId, ggml_tensor*> input_grads_;
    std::vector<std::pair<graph::ValueId, ggml_tensor*>> i32_constants_;
    std::vector<ggml_tensor*> forward_roots_;   // moments
    std::vector<ggml_tensor*> backward_roots_;  // in the order of their making
    std::vector<ggml_tensor*> external_;        // bound to memory that is not the allocator's
    ggml_cgraph* all_ = nullptr;
    ggml_cgraph* forward_ = nullptr;
    ggml_cgraph* backward_ = nullptr;
    size_t weight_bytes_ = 0;
};

}  // namespace voodoo::engine
