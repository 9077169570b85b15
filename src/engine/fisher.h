// The cotangent of the second-order scores: random, with the softmax's Hessian as its covariance.
#pragma once

#include <cstdint>

#include "base/threads.h"
#include "engine/outlets.h"

namespace voodoo::engine {

/// Replaces the logits of a position by
///   v = sqrt(p) z - p (sqrt(p) . z),  p = softmax(logits),
/// z with independent entries of mean 0 and variance 1 over the vocabulary, so that
///   E[v v'] = diag(p) - p p',
/// the Hessian of KL(p || q) with respect to q's logits at q = p. Back-propagated, E[G G'] is the
/// Fisher matrix, without drawing labels. The entries are +1 or -1: of all distributions with
/// these moments the one with the least fourth moment, hence the least noise, and the cheapest.
/// Positions before `skip` of the sequence get zeros. Deterministic in (seed, sequence, position).
class FisherProbe : public Loss {
public:
    FisherProbe(int64_t n_vocab, int64_t skip, uint64_t seed, uint64_t sequence, ThreadPool& pool)
        : n_vocab_(n_vocab), skip_(skip), seed_(seed), sequence_(sequence), pool_(pool) {}

    /// batch counts on from `sequence`; one sequence per batch.
    void add(int batch, int64_t first, int64_t n, float* logits, bool want_gradient) override;
    /// False once a logit was not finite.
    bool finite() const { return finite_; }

private:
    bool probe_row(uint64_t sequence, int64_t position, float* logits) const;

    int64_t n_vocab_;
    int64_t skip_;
    uint64_t seed_;
    uint64_t sequence_;
    ThreadPool& pool_;
    bool finite_ = true;
};

}  // namespace voodoo::engine
