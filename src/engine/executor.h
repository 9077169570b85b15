// Runs a graph: forward to hidden states and logits, backward to weight gradients, segment by
// segment.
//
//   Executor executor(graph, {.memory_bytes = 4e9});
//   executor.step(batches, weights, loss, &gradients);
#pragma once

#include <functional>
#include <memory>

#include "base/progress.h"
#include "base/threads.h"
#include "engine/outlets.h"
#include "engine/segments.h"

namespace voodoo::engine {

struct ExecutorOptions {
    int n_threads = 0;           ///< 0: available_threads()
    uint64_t memory_bytes = 0;   ///< bound for one body segment (plan_segments); 0: no limit
    int64_t logits_slice = 256;  ///< tokens whose logits exist at once
    bool gradients = true;       ///< build the backward pass
    bool moments = false;        ///< call a MomentSink in forward()
    bool full_moments = false;   ///< MomentSink::take_full instead of take; needs moments
    bool exact_gelu = false;     ///< forward only, for checks (graph/instantiate.h)
    bool stored_types =
        false;  ///< forward only: weights enter the program in their stored type (replay checks)
    /// Which weights want a gradient; empty: all.
    std::function<bool(const WeightInfo&)> wants_gradient;
};

/// Memory of an Executor, in bytes, as allocated.
struct ExecutorMemory {
    uint64_t weights = 0;  ///< F32 weights, transposes, head gradient
    uint64_t activations = 0;
    uint64_t constants = 0;
    uint64_t borders = 0;  ///< hidden states between segments in the last call
};

/// Batches are token lists of graph.n_tokens each.
using Batches = std::span<const std::span<const int32_t>>;

class Executor {
public:
    /// Throws Error(unsupported_op) naming every op without a rule if gradients are wanted.
    Executor(graph::Graph graph, ExecutorOptions options);
    ~Executor();
    Executor(Executor&&) noexcept;

    const graph::Graph& graph() const;
    const std::vector<WeightInfo>& weights() const;
    /// Index of a weight by tensor name, or -1.
    int find_weight(std::string_view name) const;
    /// The weight whose matmul turns hidden states into logits.
    int head_weight() const;
    /// Length of a hidden state.
    int64_t n_hidden() const;
    int64_t n_vocab() const;
    size_t n_segments() const;
    ExecutorMemory memory() const;

    /// Forward through the body: on_hidden(batch, [n_tokens][n_hidden]) for each batch.
    /// stored_weights: with stored_types, the bytes of each weight; else null.
    void forward(Batches batches, WeightSource& weights, MomentSink* moments,
                 const std::function<void(int, std::span<const float>)>& on_hidden,
                 const Cancellation* cancellation = nullptr);

    /// Forward, one body segment after the other over all batches. After each, `after_segment` gets
    /// the indices of its weights; where it returns true (it has changed the source's weights) the
    /// segment runs again with the new ones, without moments, before the next begins.
    using AfterSegment = std::function<bool(const std::vector<int>& weights)>;
    void forward_by_segment(Batches batches, WeightSource& weights, MomentSink& moments,
                            const AfterSegment& after_segment,
                            const Cancellation* cancellation = nullptr);
    /// The weight for which the full second moments of this weight's input are given; -1 if its
    /// input is not seen (it is only looked up, or used in the tail).
    int moment_leader(int index) const;

    /// Hidden states -> logits through the tail, in slices: loss.add(batch, ...) without gradient.
    /// hidden(batch) gives [n_tokens][n_hidden].
    void logits(int n_batches, WeightSource& weights,
                const std::function<std::span<const float>(int)>& hidden, Loss& loss,
                const Cancellation* cancellation = nullptr);

    /// The tail alone, for a teacher whose hidden states are cached: load its weights once, then
    /// give slices of slice_length() hidden states; the logits [slice][n_vocab] are valid until the
    /// next call. Only where tail_is_row_wise().
    void load_tail(WeightSource& weights);
    int64_t slice_length() const;
    std::span<const float> tail_slice(std::span<const float> hidden);
    bool tail_is_row_wise() const;

    /// Forward and backward of all batches: gradients arrive at `sink`, summed over batches by it.
    void step(Batches batches, WeightSource& weights, Loss& loss, GradientSink& sink,
              const Cancellation* cancellation = nullptr);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace voodoo::engine
