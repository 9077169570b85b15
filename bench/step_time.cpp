#include "step_time.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/loss.h"
#include "pipeline/weights.h"

namespace voodoo::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Source weights decoded once and copied from then on: a step's cost without decoding.
class CachedWeights : public engine::WeightSource {
public:
    CachedWeights(pipeline::MixedWeights& inner, size_t n) : inner_(inner), loaded_(n, false) {}
    void load(int index, float* rows, float* transposed) override {
        const auto start = Clock::now();
        // With one segment the memory still holds what the first step wrote.
        if (!resident || !loaded_[static_cast<size_t>(index)]) inner_.load(index, rows, transposed);
        loaded_[static_cast<size_t>(index)] = true;
        seconds += seconds_since(start);
    }
    bool resident = true;
    double seconds = 0;

private:
    pipeline::MixedWeights& inner_;
    std::vector<char> loaded_;
};

/// Reads one element of each gradient: contraction is measured apart.
class DroppingSink : public engine::GradientSink {
public:
    void take(int, const float* dw, int64_t, int64_t, int thread) override {
        if (thread == 0) sum += static_cast<double>(dw[0]);
    }
    double sum = 0;
};

}  // namespace

double step_seconds(pipeline::Workbench& workbench, engine::Executor& executor,
                    std::span<const int32_t> tokens, int n_sequences) {
    pipeline::MixedWeights weights(workbench.file(), executor.weights(), workbench.pool());
    CachedWeights cached(weights, executor.weights().size());
    cached.resident = executor.n_segments() == 1;
    DroppingSink sink;
    double best = 1e30;
    for (int run = 0; run < 3; ++run) {
        const std::span<const int32_t> batches[] = {tokens};
        engine::DistillationLoss loss(batches, n_sequences, executor.n_vocab(), {1.0, 0.0}, {},
                                      workbench.pool());
        cached.seconds = 0;
        const auto start = Clock::now();
        executor.step(batches, cached, loss, sink);
        const double time = seconds_since(start) - cached.seconds;
        if (run > 0) best = std::min(best, time);
    }
    return best;
}

}  // namespace voodoo::bench
