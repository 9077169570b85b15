// The kernel works on blocks of kRows rows and kLanes columns, so that the vectors of a step are
// loaded once for several rows.
#include "autodiff/recurrence.h"

#include <algorithm>
#include <cmath>

#include "autodiff/x86_levels.h"

namespace voodoo::autodiff::recurrence {

namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kLanes = 16;

// A vector of the compiler: one AVX-512 register, or several smaller ones.
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline const Lanes& lanes(const float* p) {
    return *reinterpret_cast<const Lanes*>(p);
}
inline Lanes& lanes(float* p) {
    return *reinterpret_cast<Lanes*>(p);
}
inline float sum_of(const Lanes& x) {
    float sum = 0.0F;
    for (int64_t i = 0; i < kLanes; ++i) {
        sum += x[i];
    }
    return sum;
}

/// One block of rows over the steps of a chunk. Strides in floats.
struct Block {
    int64_t n_steps;
    int64_t width;
    const float *w, *k, *a, *b, *r;
    /// Of w from step to step and from row to row (0: shared).
    int64_t w_step, w_row;
    const float *v, *y_grad;
    int64_t v_step;
    float *w_grad, *k_grad, *a_grad, *b_grad, *r_grad, *v_grad;
};

/// next = state after step t of `block`; both [kRows][width]. dots[row] = a . state.
template <bool kDelta>
__attribute__((always_inline)) inline void step_forward(const Block& block, int64_t t,
                                                        const float* state, float* next,
                                                        float* dots) {
    const int64_t n = block.width;
    const float* v = block.v + t * block.v_step;
    const float* w = block.w + t * block.w_step;
    const float* k = block.k + t * n;
    const float* a = kDelta ? block.a + t * n : nullptr;
    const float* b = kDelta ? block.b + t * n : nullptr;
    if (kDelta) {
        Lanes sums[kRows] = {};
        for (int64_t i = 0; i < n; i += kLanes) {
            const Lanes ai = lanes(a + i);
            for (int64_t row = 0; row < kRows; ++row) {
                sums[row] += ai * lanes(state + row * n + i);
            }
        }
        for (int64_t row = 0; row < kRows; ++row) {
            dots[row] = sum_of(sums[row]);
        }
    }
    for (int64_t i = 0; i < n; i += kLanes) {
        const Lanes ki = lanes(k + i);
        for (int64_t row = 0; row < kRows; ++row) {
            Lanes s = lanes(w + row * block.w_row + i) * lanes(state + row * n + i) + v[row] * ki;
            if (kDelta) {
                s += dots[row] * lanes(b + i);
            }
            lanes(next + row * n + i) = s;
        }
    }
}

/// Gradients of step t. before, after: the states around it; grad: G, replaced by that of `before`.
template <bool kDelta, bool kReadsBefore>
__attribute__((always_inline)) inline void step_backward(const Block& block, int64_t t,
                                                         const float* before, const float* after,
                                                         const float* dots, float* grad) {
    const int64_t n = block.width;
    const float* y_grad = block.y_grad + t * block.v_step;
    const float* v = block.v + t * block.v_step;
    const float* w = block.w + t * block.w_step;
    float* w_grad = block.w_grad + t * block.w_step;
    const int64_t at = t * n;
    Lanes v_sums[kRows] = {};
    Lanes c_sums[kRows] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
        const Lanes r = lanes(block.r + at + i);
        const Lanes k = lanes(block.k + at + i);
        Lanes r_sum = lanes(block.r_grad + at + i);
        Lanes k_sum = lanes(block.k_grad + at + i);
        Lanes b_sum = {};
        for (int64_t row = 0; row < kRows; ++row) {
            const Lanes s = lanes(before + row * n + i);
            Lanes g = lanes(grad + row * n + i);
            if (kReadsBefore) {
                r_sum += y_grad[row] * s;
            } else {
                g += y_grad[row] * r;
                lanes(grad + row * n + i) = g;
                r_sum += y_grad[row] * lanes(after + row * n + i);
            }
            k_sum += v[row] * g;
            v_sums[row] += g * k;
            lanes(w_grad + row * block.w_row + i) += g * s;
            if (kDelta) {
                b_sum += dots[row] * g;
                c_sums[row] += g * lanes(block.b + at + i);
            }
        }
        lanes(block.r_grad + at + i) = r_sum;
        lanes(block.k_grad + at + i) = k_sum;
        if (kDelta) {
            lanes(block.b_grad + at + i) += b_sum;
        }
    }
    float c[kRows] = {};
    for (int64_t row = 0; row < kRows; ++row) {
        block.v_grad[t * block.v_step + row] = sum_of(v_sums[row]);
        c[row] = kDelta ? sum_of(c_sums[row]) : 0.0F;
    }
    for (int64_t i = 0; i < n; i += kLanes) {
        Lanes a_sum = {};
        for (int64_t row = 0; row < kRows; ++row) {
            Lanes g = lanes(grad + row * n + i) * lanes(w + row * block.w_row + i);
            if (kDelta) {
                g += c[row] * lanes(block.a + at + i);
                a_sum += c[row] * lanes(before + row * n + i);
            }
            if (kReadsBefore) {
                g += y_grad[row] * lanes(block.r + at + i);
            }
            lanes(grad + row * n + i) = g;
        }
        if (kDelta) {
            lanes(block.a_grad + at + i) += a_sum;
        }
    }
}

/// Moves the block's state through all steps in place.
template <bool kDelta>
__attribute__((always_inline)) inline void run_forward(const Block& block, float* state) {
    float dots[kRows] = {};
    for (int64_t t = 0; t < block.n_steps; ++t) {
        step_forward<kDelta>(block, t, state, state, dots);
    }
}

/// scratch: n_steps states and their dots.
template <bool kDelta, bool kReadsBefore>
__attribute__((always_inline)) inline void run_backward(const Block& block, const float* state,
                                                        float* grad, float* scratch) {
    const int64_t size = kRows * block.width;
    float* states = scratch;
    float* dots = scratch + block.n_steps * size;
    for (int64_t t = 0; t < block.n_steps; ++t) {
        const float* before = t == 0 ? state : states + (t - 1) * size;
        step_forward<kDelta>(block, t, before, states + t * size, dots + t * kRows);
    }
    for (int64_t t = block.n_steps - 1; t >= 0; --t) {
        const float* before = t == 0 ? state : states + (t - 1) * size;
        step_backward<kDelta, kReadsBefore>(block, t, before, states + t * size, dots + t * kRows,
                                            grad);
    }
}

VOODOO_X86_LEVELS
void forward_delta(const Block& block, float* state) {
    run_forward<true>(block, state);
}

VOODOO_X86_LEVELS
void forward_plain(const Block& block, float* state) {
    run_forward<false>(block, state);
}

VOODOO_X86_LEVELS
void backward_delta(const Block& block, const float* state, float* grad, float* scratch) {
    run_backward<true, false>(block, state, grad, scratch);
}

VOODOO_X86_LEVELS
void backward_plain(const Block& block, const float* state, float* grad, float* scratch) {
    run_backward<false, false>(block, state, grad, scratch);
}

VOODOO_X86_LEVELS
void backward_reads_before(const Block& block, const float* state, float* grad, float* scratch) {
    run_backward<false, true>(block, state, grad, scratch);
}

Block block_of(const Form& form, int64_t n_steps, int64_t first_row, const Steps& steps,
               Steps* grads) {
    const int64_t n = form.padded_width();
    const int64_t row_at = form.decay_by_row ? first_row * n : 0;
    Block block{};
    block.n_steps = n_steps;
    block.width = n;
    block.w = steps.w.data() + row_at;
    block.k = steps.k.data();
    block.a = steps.a.data();
    block.b = steps.b.data();
    block.r = steps.r.data();
    block.w_step = form.decay_by_row ? form.state_size() : n;
    block.w_row = form.decay_by_row ? n : 0;
    block.v = steps.v.data() + first_row;
    block.y_grad = steps.y.data() + first_row;
    block.v_step = form.padded_rows();
    if (grads != nullptr) {
        block.w_grad = grads->w.data() + row_at;
        block.k_grad = grads->k.data();
        block.a_grad = grads->a.data();
        block.b_grad = grads->b.data();
        block.r_grad = grads->r.data();
        block.v_grad = grads->v.data() + first_row;
    }
    return block;
}

int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

void load_steps(Problem& problem, const Form& form, int64_t begin, int64_t n, Steps& steps) {
    steps.resize(form, n);
    steps.clear();
    problem.load(begin, n, steps);
}

}  // namespace

int64_t Form::padded_rows() const {
    return round_up(rows, kRows);
}

int64_t Form::padded_width() const {
    return round_up(width, kLanes);
}

void Steps::resize(const Form& form, int64_t n_steps) {
    const auto n = static_cast<size_t>(n_steps);
    const auto vectors = n * static_cast<size_t>(form.padded_width());
    const auto numbers = n * static_cast<size_t>(form.padded_rows());
    w.resize(form.decay_by_row ? n * static_cast<size_t>(form.state_size()) : vectors);
    k.resize(vectors);
    a.resize(form.has_delta ? vectors : 0);
    b.resize(form.has_delta ? vectors : 0);
    r.resize(vectors);
    v.resize(numbers);
    y.resize(numbers);
}

void Steps::clear() {
    for (std::vector<float>* x : {&w, &k, &a, &b, &r, &v, &y}) {
        std::fill(x->begin(), x->end(), 0.0F);
    }
}

void backward(Problem& problem, Workspace& workspace) {
    const Form form = problem.form();
    const int64_t n_steps = problem.n_steps();
    const int64_t length = std::max<int64_t>(
        1, static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(n_steps)))));
    const int64_t n_chunks = (n_steps + length - 1) / length;
    const int64_t size = form.state_size();
    const int64_t block_size = kRows * form.padded_width();
    const auto count_of = [&](int64_t chunk) { return std::min(length, n_steps - chunk * length); };

    workspace.checkpoints.assign(static_cast<size_t>(std::max<int64_t>(n_chunks, 1) * size), 0.0F);
    float* checkpoints = workspace.checkpoints.data();
    problem.initial_state(checkpoints);
    for (int64_t chunk = 0; chunk + 1 < n_chunks; ++chunk) {
        float* next = checkpoints + (chunk + 1) * size;
        std::copy(next - size, next, next);
        load_steps(problem, form, chunk * length, count_of(chunk), workspace.steps);
        for (int64_t row = 0; row < form.padded_rows(); row += kRows) {
            const Block block = block_of(form, count_of(chunk), row, workspace.steps, nullptr);
            (form.has_delta ? forward_delta : forward_plain)(block,
                                                             next + row * form.padded_width());
        }
    }

    const auto run = form.reads_before ? backward_reads_before
                     : form.has_delta  ? backward_delta
                                       : backward_plain;
    workspace.grad.assign(static_cast<size_t>(size), 0.0F);
    problem.final_state_grad(workspace.grad.data());
    workspace.scratch.resize(static_cast<size_t>(length * (block_size + kRows)));
    for (int64_t chunk = n_chunks - 1; chunk >= 0; --chunk) {
        load_steps(problem, form, chunk * length, count_of(chunk), workspace.steps);
        workspace.grads.resize(form, count_of(chunk));
        workspace.grads.clear();
        for (int64_t row = 0; row < form.padded_rows(); row += kRows) {
            const Block block =
                block_of(form, count_of(chunk), row, workspace.steps, &workspace.grads);
            const int64_t at = row * form.padded_width();
            run(block, checkpoints + chunk * size + at, workspace.grad.data() + at,
                workspace.scratch.data());
        }
        problem.store(chunk * length, count_of(chunk), workspace.steps, workspace.grads);
    }
    problem.store_initial_grad(workspace.grad.data());
}

}  // namespace voodoo::autodiff::recurrence
