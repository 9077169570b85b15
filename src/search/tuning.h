// Tuning of the parameters that a quantized file keeps in F32 (norms, biases): Adam on their
// changes, warm-up and cosine decay, and the choice of the best state by validation. Pure
// mathematics: the engine supplies dL/dw and validation losses, this file does the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "search/compare.h"

namespace voodoo::search {

struct TuningOptions {
    int64_t n_steps = 100;       ///< at most; schedules end there
    double lr = 2e-3;            ///< Adam's step, in units of z
    double lr_end_ratio = 0.05;  ///< lr at the end of the cosine / lr
    double warmup_share = 0.1;   ///< share of n_steps in which lr rises linearly from 0
    double beta1 = 0.9;          ///< decay of the gradient's mean, per step
    double beta2 = 0.99;         ///< decay of the gradient's second moment, per step
    double epsilon = 1e-12;      ///< added to the root of the second moment, nats per unit of z
    int64_t n_checks = 4;        ///< validations, evenly spread, besides the one before all steps
};

/// Throws Error(usage) naming every option that is out of range.
void validate(const TuningOptions& options);

/// How z changes a parameter.
enum class TuningForm {
    multiplied,  ///< w exp(z): norms
    added,       ///< w + s z with s the root mean square of the tensor: biases
};

struct TuningTensor {
    std::string name;
    TuningForm form = TuningForm::multiplied;
    std::vector<float> source;
};

/// A validation: the mean loss of each chunk (nats per token) after so many steps.
struct TuningCheck {
    int64_t step = 0;
    std::vector<double> loss;

    double mean() const;
};

/// z = 0 at the start. Not thread-safe. Run it as
///   while (!tuning.finished()) tuning.check_due() ? tuning.check(...) : tuning.step(...);
class Tuning {
public:
    /// Throws Error(usage) on options out of range and on a source that is not finite.
    Tuning(std::vector<TuningTensor> tensors, TuningOptions options);

    const std::vector<TuningTensor>& tensors() const { return tensors_; }
    const TuningOptions& options() const { return options_; }
    int64_t n_parameters() const;
    int64_t step_index() const { return step_; }
    /// All steps and checks are done, or validation got clearly worse.
    bool finished() const;
    /// Learning rate of a step.
    double lr_at(int64_t step) const;

    /// The tensor as it is now.
    std::vector<float> values(size_t tensor) const;
    /// The tensor as it was at the check with the lowest loss.
    std::vector<float> best_values(size_t tensor) const;

    /// One update from dL/dw of the values (by tensor and element). False if a gradient is not
    /// finite: then nothing moves, but the step counts.
    bool step(std::span<const std::vector<double>> gradients);

    bool check_due() const;
    /// Mean losses of the validation chunks, the same chunks in every call. A loss that is not
    /// finite, or one that lies above the best by more than two paired standard errors, ends the
    /// tuning. Throws Error(usage) if the number of chunks changes, or if the loss before all steps
    /// is not finite.
    void check(std::vector<double> chunk_losses);
    const std::vector<TuningCheck>& checks() const { return checks_; }
    /// Index into checks() of the lowest mean; of equals the earlier.
    size_t best() const { return best_; }
    /// The best check (a) against the one before all steps (b).
    PairedComparison gain() const;
    /// The loss fell by more than one paired standard error.
    bool accepted() const;

    /// The state between two calls, in the machine's own number format.
    std::string serialize() const;
    /// Goes on from serialize() of an object with the same tensors and options. Throws
    /// Error(bad_file) if it can't be that; the object is then unchanged.
    void restore(std::string_view bytes);

private:
    using Rows = std::vector<std::vector<double>>;
    std::vector<float> values_at(size_t tensor, const Rows& z) const;
    Rows zeros() const;

    std::vector<TuningTensor> tensors_;
    std::vector<double> scale_;  // by tensor: s of the added ones
    TuningOptions options_;
    int64_t step_ = 0;
    int64_t n_applied_ = 0;  // Adam's t
    bool stopped_ = false;
    Rows z_, mean_, second_;
    Rows best_z_;
    std::vector<TuningCheck> checks_;
    size_t best_ = 0;
};

}  // namespace voodoo::search
