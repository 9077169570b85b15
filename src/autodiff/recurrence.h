// The recurrence that linear attention and state space models share, backwards: one kernel, which
// the rules of GATED_DELTA_NET, SSM_SCAN, RWKV_WKV6/7 and GATED_LINEAR_ATTN feed.
#pragma once

#include <cstdint>
#include <vector>

namespace voodoo::autodiff::recurrence {

/// A state of `rows` independent rows of `width` numbers. For every row and step t
///
///   s_t = w_t * s_{t-1} + v_t k_t + (a_t . s_{t-1}) b_t          (* elementwise, . dot product)
///   y_t = r_t . s_t      or, with reads_before,  r_t . s_{t-1}
///
/// w, k, a, b, r are vectors of the step (w may differ by row), v and y numbers of step and row.
///
/// Gradients, with G = the gradient of s_t from all later steps (backwards over t):
///   G += y_grad r (unless reads_before);  r_grad = sum_rows y_grad s
///   v_grad = G . k;  k_grad = sum_rows v G;  c = G . b
///   b_grad = sum_rows (a . s_{t-1}) G;  a_grad = sum_rows c s_{t-1}
///   w_grad = [sum_rows] G * s_{t-1};  G <- w * G + c a (+ y_grad r with reads_before)
struct Form {
    int64_t rows = 0;
    int64_t width = 0;
    bool has_delta = false;     ///< the term of a and b exists
    bool reads_before = false;  ///< y reads the state before the step
    bool decay_by_row = false;  ///< w is [step][row][width]

    /// Sizes in memory: whole blocks of the kernel.
    int64_t padded_rows() const;
    int64_t padded_width() const;
    int64_t state_size() const { return padded_rows() * padded_width(); }
};

/// Values, or gradients, of the steps of one chunk: w, k, a, b, r are [step][padded width] (w also
/// by row), v and y [step][padded rows]. Padding is zero.
struct Steps {
    std::vector<float> w, k, a, b, r, v, y;

    void resize(const Form& form, int64_t n_steps);
    void clear();
};

/// One sequence of one head (or block of heads), as a rule describes it. Not shared by threads.
class Problem {
public:
    virtual ~Problem() = default;
    virtual Form form() const = 0;
    virtual int64_t n_steps() const = 0;
    /// Fill the zeroed [padded_rows][padded_width] array.
    virtual void initial_state(float* state) = 0;
    virtual void final_state_grad(float* grad) = 0;
    /// Fills w, k, a, b, r, v and y_grad (in `y`) of steps [begin, begin + n), which are zeroed.
    virtual void load(int64_t begin, int64_t n, Steps& steps) = 0;
    /// Takes the gradients of these steps (`y` is unused); called once for each, last chunk first.
    virtual void store(int64_t begin, int64_t n, const Steps& steps, const Steps& grads) = 0;
    /// Takes the gradient of the initial state.
    virtual void store_initial_grad(const float* grad) = 0;
};

/// Buffers of one thread, reused between problems.
struct Workspace {
    std::vector<float> checkpoints;
    std::vector<float> grad;
    std::vector<float> scratch;
    Steps steps;
    Steps grads;
};

/// Runs the gradients of `problem`. The forward states are computed again from a checkpoint every
/// ~sqrt(n_steps) steps, so that the memory grows with the root of the length.
void backward(Problem& problem, Workspace& workspace);

}  // namespace voodoo::autodiff::recurrence
