// The outlet of the second-order scores against its definition, computed directly.
#include "pipeline/row_costs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "quant/codec.h"

namespace voodoo::pipeline {
namespace {

constexpr int64_t kColumns = 96, kRows = 150;

struct Case {
    explicit Case(int n_uses) {
        Random random(3, "row costs");
        source.resize(kColumns * kRows);
        for (float& x : source) x = static_cast<float>(random.normal());
        engine::WeightInfo info;
        info.name = "w";
        info.ne = {kColumns, kRows, 1, 1};
        info.n_uses = n_uses;
        weights.push_back(info);
        ThreadPool pool(1);
        RowSample& rows = sample.rows;
        for (int64_t r = 1; r < kRows; r += 3) {
            rows.rows.push_back(r);
            rows.certain.push_back(r % 2 == 0 ? 1 : 0);
            rows.source.insert(rows.source.end(), source.begin() + r * kColumns,
                               source.begin() + (r + 1) * kColumns);
        }
        rows.shape = {kColumns, static_cast<int64_t>(rows.rows.size()), 1};
        for (const ggml_type type : types) {
            std::vector<std::byte> bytes(
                quant::size_bytes(type, kColumns, rows.shape.total_rows()));
            EXPECT_TRUE(quant::encode(quant::Encoder(), type, rows.source.data(), rows.shape,
                                      nullptr, bytes.data(), pool)
                            .usable);
            sample.encoded.emplace(type, std::move(bytes));
        }
        for (int64_t r = 0; r < kRows; ++r) {
            float sum = 0;
            for (int64_t j = 0; j < kColumns; ++j) {
                const float x = source[static_cast<size_t>(r * kColumns + j)];
                sum += x * x;
            }
            norms.push_back(sum);
        }
    }

    /// What chunk() has to give for the gradient.
    search::RowSquares expected(const std::vector<float>& dw) const {
        search::RowSquares out;
        const auto row_proxy = [&](int64_t r) {
            double square = 0.0;
            for (int64_t j = 0; j < kColumns; ++j)
                square +=
                    std::pow(static_cast<double>(dw[static_cast<size_t>(r * kColumns + j)]), 2);
            return square * static_cast<double>(norms[static_cast<size_t>(r)]);
        };
        for (const ggml_type type : types) {
            std::vector<float> decoded(static_cast<size_t>(sample.rows.shape.n_elements()));
            quant::to_float(type, sample.encoded.at(type).data(), decoded.data(),
                            sample.rows.shape.n_elements());
            for (size_t i = 0; i < sample.rows.rows.size(); ++i) {
                double sum = 0.0;
                for (int64_t j = 0; j < kColumns; ++j) {
                    const size_t at = i * kColumns + static_cast<size_t>(j);
                    sum += static_cast<double>(
                               dw[static_cast<size_t>(sample.rows.rows[i] * kColumns + j)]) *
                           (static_cast<double>(decoded[at]) -
                            static_cast<double>(sample.rows.source[at]));
                }
                out.squares.push_back(sum * sum);
            }
        }
        std::vector<char> certain(kRows, 0);
        for (size_t i = 0; i < sample.rows.rows.size(); ++i) {
            out.proxy.push_back(row_proxy(sample.rows.rows[i]));
            certain[static_cast<size_t>(sample.rows.rows[i])] = sample.rows.certain[i];
        }
        for (int64_t r = 0; r < kRows; ++r) {
            if (certain[static_cast<size_t>(r)] == 0) out.proxy_rest += row_proxy(r);
        }
        return out;
    }

    const std::vector<ggml_type> types = {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0};
    std::vector<float> source, norms;
    std::vector<engine::WeightInfo> weights;
    EncodedSample sample;
};

/// As the threads of a computation hand a gradient over: each its share of the rows.
void hand_over(RowCostSink& sink, const std::vector<float>& dw, int n_threads) {
    for (int thread = 0; thread < n_threads; ++thread) {
        const int64_t begin = kRows * thread / n_threads, end = kRows * (thread + 1) / n_threads;
        sink.take(0, dw.data() + begin * kColumns, begin, end - begin, thread);
    }
}

std::vector<float> random_gradient(uint64_t seed) {
    Random random(seed, "dw");
    std::vector<float> dw(kColumns * kRows);
    for (float& x : dw) x = static_cast<float>(random.normal());
    return dw;
}

void expect_equal(const search::RowSquares& a, const search::RowSquares& b) {
    ASSERT_EQ(a.squares.size(), b.squares.size());
    for (size_t i = 0; i < a.squares.size(); ++i)
        EXPECT_NEAR(std::sqrt(a.squares[i]), std::sqrt(b.squares[i]), 2e-4) << i;
    for (size_t i = 0; i < a.proxy.size(); ++i)
        EXPECT_NEAR(a.proxy[i] / b.proxy[i], 1.0, 1e-5) << i;
    EXPECT_NEAR(a.proxy_rest / b.proxy_rest, 1.0, 1e-5);
}

TEST(RowCosts, AreTheSquaredContractionsOfSampledRowsWhateverTheThreads) {
    const Case c(1);
    const std::vector<float> dw = random_gradient(1);
    for (const int nth : {1, 3}) {
        RowCostSink sink(c.weights, 3);
        sink.set(0, 0, c.sample, c.types, c.norms);
        sink.clear();
        hand_over(sink, dw, nth);
        ThreadPool pool(1);
        sink.finish(pool);
        expect_equal(sink.chunk().at(0), c.expected(dw));
    }
}

TEST(RowCosts, OfATensorWithTwoUsesAreTheSquaresOfTheSum) {
    const Case c(2);
    const std::vector<float> first = random_gradient(1), second = random_gradient(2);
    std::vector<float> sum = first;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
    RowCostSink sink(c.weights, 2);
    sink.set(0, 0, c.sample, c.types, c.norms);
    ThreadPool pool(2);
    for (int round = 0; round < 2; ++round) {  // clear() forgets the chunk before
        sink.clear();
        hand_over(sink, first, 2);
        hand_over(sink, second, 2);
        sink.finish(pool);
        expect_equal(sink.chunk().at(0), c.expected(sum));
    }
}

}  // namespace
}  // namespace voodoo::pipeline
