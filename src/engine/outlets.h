// What goes into the engine and what comes out of it, as interfaces: weights, weight gradients,
// second moments, loss. Search and tools are written in terms of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace voodoo::engine {

/// A weight of the model as the engine sees it.
struct WeightInfo {
    std::string name;   ///< tensor name in the file
    graph::Shape ne{};  ///< ne0 = columns (inputs), ne1 = rows (outputs)
    ggml_type stored_type = GGML_TYPE_F32;
    int n_uses = 0;  ///< parts in which gradients arrive: 2 for a tied embedding

    int64_t n_elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
    /// Matrices: experts, or heads of a tensor that is one matrix for each.
    int64_t n_matrices() const { return ne[2] * ne[3]; }
    int64_t n_rows() const { return ne[1] * n_matrices(); }
};

/// Gives the engine its weights, in F32, when it needs them.
class WeightSource {
public:
    virtual ~WeightSource() = default;
    /// Writes weight `index` as [ne3][ne2][ne1][ne0] to `rows` and, where not null, with ne0 and
    /// ne1 swapped to `transposed`. Called from the thread that runs the step, never at the same
    /// time as a computation.
    virtual void load(int index, float* rows, float* transposed) = 0;
    /// Names what load() would give for this weight: no two values that the process ever has under
    /// one number, whichever source they come from (sources may follow each other at one address).
    /// 0: always load again. Spares the loading of weights that are in memory already.
    virtual uint64_t version(int /*index*/) const { return 0; }
    /// The weight's bytes in its stored type: only asked for by an executor with
    /// ExecutorOptions::stored_types.
    virtual std::span<const std::byte> stored(int /*index*/) { return {}; }
};

/// Takes the gradients of weights as soon as they exist; they are gone afterwards.
class GradientSink {
public:
    virtual ~GradientSink() = default;
    /// Rows [first_row, first_row + n_rows) of dL/dW of weight `index`, F32, ne0 values each. Rows
    /// are counted through all matrices of a tensor; a call stays within one matrix of a tensor of
    /// experts, and rows of experts that no token was routed to may never come: zero. Called by
    /// each `thread` of the computation with rows of its own, at the same time as by the others.
    /// Several calls for one row (batches, uses) add up. Must not throw.
    virtual void take(int index, const float* dw, int64_t first_row, int64_t n_rows,
                      int thread) = 0;
};

/// Takes the inputs of matmuls with a weight, from the forward pass.
class MomentSink {
public:
    virtual ~MomentSink() = default;
    /// Before a segment with these weights runs, from the thread that runs it: the place to
    /// allocate.
    virtual void begin_segment(const std::vector<int>& /*weights*/) {}
    /// x: n_columns vectors of length ne0 that matrix `matrix` of weight `index` is multiplied
    /// with, `stride` floats apart (several matrices: experts, or heads). Called by every thread
    /// ith of nth with the same x: each takes its share. Must not throw.
    virtual void take(int index, int64_t matrix, const float* x, int64_t n_columns, int64_t stride,
                      int ith, int nth) = 0;
    /// With ExecutorOptions::full_moments instead of take(): h[i][j] = sum over n_columns vectors
    /// of x_i x_j, ne0 x ne0. Weights with the same input share it: it is given once, for the first
    /// of them (Executor::moment_leader).
    virtual void take_full(int /*index*/, const float* /*h*/, int64_t /*n_columns*/, int /*ith*/,
                           int /*nth*/) {}
};

/// Turns logits into a loss and its gradient, slice by slice.
class Loss {
public:
    virtual ~Loss() = default;
    /// Before the slices of a batch.
    virtual void begin_batch(int /*batch*/) {}
    /// logits: [n][n_vocab] of tokens [first, first + n) of the batch. Overwrites them with
    /// dL/dlogits if `want_gradient`. Called from the thread that runs the step.
    virtual void add(int batch, int64_t first, int64_t n, float* logits, bool want_gradient) = 0;
};

}  // namespace voodoo::engine
