#include "quant/candidates.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "test_data.h"

namespace voodoo::quant {
namespace {

/// Some candidates of one random tensor, with their plain decodings.
struct Fixture {
    explicit Fixture(MatrixShape the_shape, std::vector<ggml_type> types) : shape(the_shape) {
        ThreadPool pool(1);
        weights = random_weights(shape.n_elements(), 11);
        importance = random_importance(shape.n_per_row * shape.n_mat, 12);
        for (const ggml_type type : types) {
            bytes.push_back(encoded(type, weights, shape, importance, pool));
            values.push_back(decoded(type, bytes.back(), shape.n_elements()));
            views.push_back(make_view(type, bytes.back().data(), shape.n_per_row));
        }
    }

    MatrixShape shape;
    std::vector<float> weights;
    std::vector<float> importance;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<std::vector<float>> values;
    std::vector<CandidateView> views;
};

const std::vector<MatrixShape> kShapes = {
    {256, 1, 1}, {256, 33, 1}, {1280, 70, 1}, {768, 37, 3}, {2048, 5, 1}};
const std::vector<ggml_type> kTypes = {GGML_TYPE_Q4_K, GGML_TYPE_IQ3_S, GGML_TYPE_Q8_0,
                                       GGML_TYPE_Q2_0};

TEST(Mix, IsTheWeightedSumOfTheDecodedCandidates) {
    for (const MatrixShape& shape : kShapes) {
        const Fixture f(shape, kTypes);
        const std::vector<float> p = {0.5f, 0.0f, 0.2f, 0.3f};
        const auto n = static_cast<size_t>(shape.n_elements());
        std::vector<float> rows(n);
        std::vector<float> transposed(n);
        ThreadPool pool(3);
        mix(f.views, p, shape, {rows.data(), transposed.data()}, pool);
        double largest = 0.0;
        for (int64_t m = 0; m < shape.n_mat; ++m) {
            for (int64_t r = 0; r < shape.n_rows; ++r) {
                for (int64_t c = 0; c < shape.n_per_row; ++c) {
                    const auto i =
                        static_cast<size_t>((m * shape.n_rows + r) * shape.n_per_row + c);
                    const auto j =
                        static_cast<size_t>((m * shape.n_per_row + c) * shape.n_rows + r);
                    double expected = 0.0;
                    for (size_t k = 0; k < p.size(); ++k) {
                        expected += static_cast<double>(p[k]) * static_cast<double>(f.values[k][i]);
                    }
                    ASSERT_NEAR(rows[i], expected, 1e-7) << i;
                    ASSERT_EQ(rows[i], transposed[j]) << i;
                    largest = std::max(largest, std::fabs(expected));
                }
            }
        }
        EXPECT_GT(largest, 0.01);
    }
}

TEST(Mix, OfOneCandidateIsItsPlainDecoding) {
    for (const TypeInfo& info : all_types()) {
        if (has_slow_tables(info.type)) continue;
        const Fixture f({1024, 9, 1}, {info.type});
        std::vector<float> rows(f.weights.size());
        ThreadPool pool(2);
        mix(f.views, std::vector<float>{1.0f}, f.shape, {rows.data(), nullptr}, pool);
        EXPECT_EQ(rows, f.values[0]) << info.name;
    }
}

TEST(Mix, DoesNotReadCandidatesOfWeightZero) {
    const Fixture f({256, 4, 1}, {GGML_TYPE_Q8_0});
    std::vector<CandidateView> views = f.views;
    views.push_back({GGML_TYPE_Q4_K, nullptr, 144});
    std::vector<float> rows(f.weights.size(), 7.0f);
    ThreadPool pool(1);
    mix(views, std::vector<float>{1.0f, 0.0f}, f.shape, {rows.data(), nullptr}, pool);
    EXPECT_EQ(rows, f.values[0]);
    mix(views, std::vector<float>{0.0f, 0.0f}, f.shape, {rows.data(), nullptr}, pool);
    EXPECT_EQ(rows, std::vector<float>(rows.size(), 0.0f));
    EXPECT_THROW(mix(views, std::vector<float>{1.0f}, f.shape, {rows.data(), nullptr}, pool),
                 Error);
}

TEST(Mix, AcceptsRowsThatAreNoMultipleOfALargeBlock) {
    const MatrixShape shape{576 + 32, 11, 1};
    const Fixture f(shape, {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0});
    std::vector<float> rows(f.weights.size());
    std::vector<float> transposed(f.weights.size());
    ThreadPool pool(2);
    mix(f.views, std::vector<float>{0.25f, 0.75f}, shape, {rows.data(), transposed.data()}, pool);
    for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_NEAR(rows[i], 0.25f * f.values[0][i] + 0.75f * f.values[1][i], 1e-7);
        ASSERT_EQ(rows[i], transposed[i % 608 * 11 + i / 608]);
    }
}

TEST(Mix, InBf16RoundsTheFloatMixture) {
    const MatrixShape shape{768, 37, 2};
    const Fixture f(shape, kTypes);
    const std::vector<float> p = {0.1f, 0.2f, 0.3f, 0.4f};
    std::vector<float> rows(f.weights.size());
    std::vector<ggml_bf16_t> half(rows.size());
    std::vector<ggml_bf16_t> half_transposed(rows.size());
    ThreadPool pool(2);
    mix(f.views, p, shape, MixOutput{rows.data(), nullptr}, pool);
    mix(f.views, p, shape, MixOutputBf16{half.data(), half_transposed.data()}, pool);
    for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(half[i].bits, ggml_fp32_to_bf16(rows[i]).bits) << rows[i];
        const size_t matrix = i / (768 * 37);
        const size_t r = i / 768 % 37;
        ASSERT_EQ(half[i].bits, half_transposed[(matrix * 768 + i % 768) * 37 + r].bits);
    }
}

TEST(Mix, ByBlocksEqualsTheWhole) {
    const MatrixShape shape{768, 70, 2};
    const Fixture f(shape, kTypes);
    const std::vector<float> p = {0.1f, 0.2f, 0.3f, 0.4f};
    std::vector<float> whole(f.weights.size());
    std::vector<float> pieces(f.weights.size());
    ThreadPool pool(2);
    mix(f.views, p, shape, {nullptr, whole.data()}, pool);
    EXPECT_EQ(n_row_blocks(shape), 6);
    for (int64_t b = 5; b >= 0; --b)
        mix_blocks(f.views, p, shape, {nullptr, pieces.data()}, b, b + 1);
    EXPECT_EQ(whole, pieces);
}

TEST(Contract, GivesInnerProductsWithEachCandidateAndRow) {
    for (const MatrixShape& shape : kShapes) {
        const Fixture f(shape, kTypes);
        const std::vector<float> dw = random_weights(shape.n_elements(), 21, 1.0);
        std::vector<double> c(kTypes.size(), 99.0);
        const auto n_rows = static_cast<size_t>(shape.total_rows());
        std::vector<float> row_sums(kTypes.size() * n_rows);
        ThreadPool pool(3);
        contract(f.views, dw.data(), shape, c.data(), row_sums.data(), pool);
        for (size_t k = 0; k < kTypes.size(); ++k) {
            double total = 0.0;
            double norm = 0.0;
            for (size_t row = 0; row < n_rows; ++row) {
                double sum = 0.0;
                for (size_t j = 0; j < static_cast<size_t>(shape.n_per_row); ++j) {
                    const size_t i = row * static_cast<size_t>(shape.n_per_row) + j;
                    sum += static_cast<double>(dw[i]) * static_cast<double>(f.values[k][i]);
                    norm +=
                        std::fabs(static_cast<double>(dw[i]) * static_cast<double>(f.values[k][i]));
                }
                ASSERT_NEAR(row_sums[k * n_rows + row], sum, 1e-5);
                total += sum;
            }
            ASSERT_GT(norm, 0.0);
            EXPECT_NEAR(c[k], total, 1e-6 * norm);
        }
    }
}

TEST(Contract, IsBitIdenticalForAnyNumberOfThreads) {
    const MatrixShape shape{1280, 131, 2};
    const Fixture f(shape, kTypes);
    const std::vector<float> dw = random_weights(shape.n_elements(), 22, 1.0);
    std::vector<double> first;
    for (const int n_threads : {1, 2, 5}) {
        ThreadPool pool(n_threads);
        std::vector<double> c(kTypes.size());
        contract(f.views, dw.data(), shape, c.data(), nullptr, pool);
        if (first.empty()) first = c;
        EXPECT_EQ(c, first);
    }
    std::vector<double> partial(static_cast<size_t>(n_row_blocks(shape)) * kTypes.size());
    for (int64_t b = n_row_blocks(shape) - 1; b >= 0; --b) {
        contract_blocks(f.views, dw.data(), shape, partial.data(), nullptr, b, b + 1);
    }
    std::vector<double> c(kTypes.size());
    sum_partials(partial.data(), n_row_blocks(shape), static_cast<int64_t>(kTypes.size()),
                 c.data());
    EXPECT_EQ(c, first);
}

TEST(ErrorMoments, WeighSquaredErrorsByImportance) {
    const MatrixShape shape{768, 37, 3};
    const Fixture f(shape, kTypes);
    const CandidateView reference = make_view(GGML_TYPE_F32, bytes_of(f.weights), shape.n_per_row);
    ThreadPool pool(2);
    for (const bool weighted : {true, false}) {
        const ErrorMoments moments = error_moments(f.views, reference, shape,
                                                   weighted ? f.importance.data() : nullptr, pool);
        ASSERT_EQ(moments.error.size(), kTypes.size());
        double norm = 0.0;
        for (size_t k = 0; k < kTypes.size(); ++k) {
            double expected = 0.0;
            norm = 0.0;
            for (size_t i = 0; i < f.weights.size(); ++i) {
                const size_t column = i / (768 * 37) * 768 + i % 768;
                const double w = weighted ? static_cast<double>(f.importance[column]) : 1.0;
                expected += w * std::pow(static_cast<double>(f.values[k][i] - f.weights[i]), 2);
                norm += w * std::pow(static_cast<double>(f.weights[i]), 2);
            }
            ASSERT_GT(expected, 0.0);
            EXPECT_NEAR(moments.error[k] / expected, 1.0, 1e-5);
        }
        EXPECT_NEAR(moments.reference / norm, 1.0, 1e-5);
    }
    const ErrorMoments self =
        error_moments(std::vector<CandidateView>{reference}, reference, shape, nullptr, pool);
    EXPECT_EQ(self.error[0], 0.0);
}

}  // namespace
}  // namespace voodoo::quant
