// The outlets over tensors of several matrices: contractions from pieces of a gradient, moments by
// expert.
#include "pipeline/weights.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "quant/codec.h"

namespace voodoo::pipeline {
namespace {

constexpr int64_t kColumns = 64, kRows = 70, kExperts = 3;
constexpr int64_t kTotal = kColumns * kRows * kExperts;

std::vector<engine::WeightInfo> experts() {
    engine::WeightInfo info;
    info.name = "w";
    info.ne = {kColumns, kRows, kExperts, 1};
    return {info};
}

std::vector<float> random_values(const char* stream, int64_t n) {
    Random random(5, stream);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = static_cast<float>(random.normal());
    return values;
}

TEST(ContractSink, AddsUpPiecesOfExpertsWhateverTheirOrderAndThread) {
    const std::vector<engine::WeightInfo> weights = experts();
    const std::vector<float> source = random_values("source", kTotal);
    const std::vector<float> dw = random_values("gradient", kTotal);
    std::vector<quant::CandidateView> views;
    std::vector<std::vector<std::byte>> encoded;
    std::vector<double> expected;
    ThreadPool pool(1);
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0}) {
        auto& bytes = encoded.emplace_back(quant::size_bytes(type, kColumns, kRows * kExperts));
        ASSERT_TRUE(quant::encode(quant::Encoder(), type, source.data(),
                                  {kColumns, kRows, kExperts}, nullptr, bytes.data(), pool)
                        .usable);
        std::vector<float> decoded(kTotal);
        quant::to_float(type, bytes.data(), decoded.data(), kTotal);
        double sum = 0;
        for (size_t i = kRows * kColumns; i < decoded.size(); ++i)  // no gradient of expert 0
            sum += static_cast<double>(decoded[i]) * static_cast<double>(dw[i]);
        expected.push_back(sum);
        views.push_back(quant::make_view(type, bytes.data(), kColumns));
    }
    ContractSink sink(weights, 2);
    sink.set(0, views);
    const auto give = [&](int64_t first, int64_t n, int thread) {
        sink.take(0, dw.data() + first * kColumns, first, n, thread);
    };
    give(2 * kRows, 33, 1);
    give(kRows, kRows, 0);
    give(2 * kRows + 33, kRows - 33, 0);
    const std::vector<double> c = sink.contraction(0);
    for (size_t k = 0; k < c.size(); ++k) EXPECT_NEAR(c[k], expected[k], 1e-3);
    sink.clear();
    EXPECT_EQ(sink.contraction(0), std::vector<double>(2, 0.0));
}

TEST(MomentSums, KeepSumsAndCountsOfEachExpertApart) {
    const std::vector<engine::WeightInfo> weights = experts();
    const std::vector<float> x = random_values("input", 3 * kColumns);
    MomentSums moments(weights);
    EXPECT_TRUE(moments.is_empty(0));
    for (int ith = 0; ith < 2; ++ith) {
        moments.take(0, 2, x.data(), 2, kColumns, ith, 2);
        moments.take(0, 0, x.data() + 2 * kColumns, 1, kColumns, ith, 2);
    }
    EXPECT_FALSE(moments.is_empty(0));
    EXPECT_EQ(moments.counts(0), (std::vector<int64_t>{1, 0, 2}));
    const auto square = [&](int64_t row, int64_t j) {
        const auto v = static_cast<double>(x[static_cast<size_t>(row * kColumns + j)]);
        return v * v;
    };
    for (int64_t j = 0; j < kColumns; ++j) {
        const auto at = [&](int64_t expert) {
            return moments.sums(0)[static_cast<size_t>(expert * kColumns + j)];
        };
        EXPECT_DOUBLE_EQ(at(0), square(2, j));
        EXPECT_EQ(at(1), 0.0);
        EXPECT_DOUBLE_EQ(at(2), square(0, j) + square(1, j));
    }
}

}  // namespace
}  // namespace voodoo::pipeline
