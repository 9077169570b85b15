// How the gradients of experts leave the engine: some rows of one expert at a time, and nothing for
// experts that no token was routed to.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "e2e/e2e_run.h"
#include "engine/executor.h"
#include "pipeline/weights.h"
#include "pipeline/workbench.h"

namespace voodoo::engine {
namespace {

constexpr int kExperts = 20;  // the last is never chosen
constexpr int64_t kWidth = 256;
constexpr int32_t kTokens = 32;

/// A gradient at the logits that depends on nothing.
class FixedLoss : public Loss {
public:
    explicit FixedLoss(int64_t n_vocab) : n_vocab_(n_vocab) {}
    void add(int, int64_t first, int64_t n, float* logits, bool) override {
        for (int64_t i = 0; i < n * n_vocab_; ++i)
            logits[i] = static_cast<float>((first * n_vocab_ + i) * 7 % 11 - 5);
    }

private:
    int64_t n_vocab_;
};

/// Adds the gradients up and notes what came.
class RecordingSink : public GradientSink {
public:
    explicit RecordingSink(const std::vector<WeightInfo>& weights) : weights_(weights) {}

    void take(int index, const float* dw, int64_t first_row, int64_t n_rows, int) override {
        const std::lock_guard lock(mutex_);
        const WeightInfo& info = weights_[static_cast<size_t>(index)];
        if (info.n_matrices() > 1) {
            largest_piece = std::max(largest_piece, n_rows);
            crosses_experts |= first_row / info.ne[1] != (first_row + n_rows - 1) / info.ne[1];
            for (int64_t row = first_row; row < first_row + n_rows; ++row) ++times[info.name][row];
        }
        auto& sum = sums[info.name];
        sum.resize(static_cast<size_t>(info.n_elements()));
        for (int64_t i = 0; i < n_rows * info.ne[0]; ++i)
            sum[static_cast<size_t>(first_row * info.ne[0] + i)] += dw[i];
    }

    std::map<std::string, std::vector<float>> sums;
    std::map<std::string, std::map<int64_t, int>> times;  // of experts' tensors, by row
    int64_t largest_piece = 0;
    bool crosses_experts = false;

private:
    const std::vector<WeightInfo>& weights_;
    std::mutex mutex_;
};

class ExpertGradients : public ::testing::Test {
protected:
    void SetUp() override {
        e2e::write_source(folder_ / "model.gguf", {.n_expert = kExperts});
        bench_.emplace(e2e::quick_settings(folder_ / "model.gguf", {}), null_observer());
    }

    Executor make(int n_threads) {
        ExecutorOptions options;
        options.n_threads = n_threads;
        return Executor(bench_->capture(1, kTokens, true), options);
    }

    void step(Executor& executor, RecordingSink& sink) {
        std::vector<int32_t> tokens;
        for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(testing::kFirstByte + i * 37 % 250);
        const std::span<const int32_t> batch[] = {tokens};
        pipeline::MixedWeights weights(bench_->file(), executor.weights(), bench_->pool());
        FixedLoss loss(executor.n_vocab());
        executor.step(batch, weights, loss, sink);
    }

    e2e::TempFolder folder_;
    std::optional<pipeline::Workbench> bench_;
};

TEST_F(ExpertGradients, LeaveInPiecesOfOneExpertAndNoneForExpertsWithoutTokens) {
    Executor executor = make(3);
    RecordingSink sink(executor.weights());
    step(executor, sink);
    ASSERT_EQ(sink.times.size(), 3u) << "gate, up and down";
    EXPECT_FALSE(sink.crosses_experts);
    EXPECT_LE(sink.largest_piece, kWidth / 3);
    for (const auto& [name, rows] : sink.times) {
        EXPECT_EQ(rows.size() % kWidth, 0u) << name << ": a part of an expert";
        EXPECT_GT(rows.size(), 4u * kWidth) << name;
        for (const auto& [row, n] : rows) {
            EXPECT_EQ(n, 1) << name << " row " << row;
            EXPECT_LT(row, (kExperts - 1) * kWidth) << name << ": an expert that no token chose";
        }
    }
}

TEST_F(ExpertGradients, AreTheSameForAnyNumberOfThreads) {
    Executor one = make(1), three = make(3);
    RecordingSink expected(one.weights()), sink(three.weights());
    step(one, expected);
    step(three, sink);
    for (const auto& [name, sum] : expected.sums) {
        const std::vector<float>& other = sink.sums.at(name);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < sum.size(); ++i) {
            difference += std::pow(static_cast<double>(other[i] - sum[i]), 2);
            norm += std::pow(static_cast<double>(sum[i]), 2);
        }
        EXPECT_GT(norm, 0.0) << name;
        EXPECT_LE(std::sqrt(difference / norm), 1e-5) << name;
    }
}

TEST_F(ExpertGradients, AreNeverInMemoryAsAWhole) {
    Executor executor = make(1);
    RecordingSink sink(executor.weights());
    step(executor, sink);
    const uint64_t experts_bytes = kExperts * kWidth * kWidth * sizeof(float);
    EXPECT_LT(executor.memory().activations, experts_bytes);
    // Nor are they transposed: the weights are there once, the others twice, the head's gradient.
    uint64_t others = 0;
    for (const WeightInfo& info : executor.weights()) {
        if (info.n_matrices() == 1)
            others += static_cast<uint64_t>(info.n_elements()) * sizeof(float);
    }
    EXPECT_LT(executor.memory().weights, 3 * experts_bytes + 3 * others);
}

}  // namespace
}  // namespace voodoo::engine
