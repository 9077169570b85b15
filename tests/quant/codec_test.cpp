#include "quant/codec.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "test_data.h"
#include "type_checks.h"

namespace voodoo::quant {
namespace {

TEST(Encode, IsIndependentOfThreadsAndOfHowRowsAreSplit) {
    const MatrixShape shape{256, 37, 3};
    const std::vector<float> weights = random_weights(shape.n_elements(), 1);
    const std::vector<float> importance = random_importance(shape.n_per_row * shape.n_mat, 2);
    ThreadPool one(1);
    ThreadPool four(4);
    for (const TypeInfo& info : all_types()) {
        if (has_slow_tables(info.type)) continue;
        SCOPED_TRACE(std::string(info.name));
        const std::vector<std::byte> expected = encoded(info.type, weights, shape, importance, one);
        EXPECT_EQ(encoded(info.type, weights, shape, importance, four), expected);
        std::vector<std::byte> pieces(expected.size());
        const uint64_t row_size = row_bytes(info.type, shape.n_per_row);
        for (int64_t row = 0; row < shape.total_rows(); row += 23) {
            const int64_t n = std::min<int64_t>(23, shape.total_rows() - row);
            ASSERT_TRUE(encode_rows(Encoder(), info.type, weights.data() + row * shape.n_per_row,
                                    shape, row, n, importance.data(),
                                    pieces.data() + static_cast<uint64_t>(row) * row_size, four)
                            .usable);
        }
        EXPECT_EQ(pieces, expected);
    }
}

TEST(Encode, GivesEachMatrixItsOwnImportances) {
    const MatrixShape one_matrix{256, 16, 1};
    const MatrixShape two{256, 16, 2};
    ThreadPool pool(2);
    const std::vector<float> weights = random_weights(two.n_elements(), 1);
    const std::vector<float> importance = random_importance(512, 2);
    const std::vector<std::byte> both = encoded(GGML_TYPE_Q4_K, weights, two, importance, pool);
    const std::vector<float> second_weights(weights.begin() + one_matrix.n_elements(),
                                            weights.end());
    const std::vector<float> second_importance(importance.begin() + 256, importance.end());
    const std::vector<std::byte> second =
        encoded(GGML_TYPE_Q4_K, second_weights, one_matrix, second_importance, pool);
    EXPECT_TRUE(
        std::equal(second.begin(), second.end(), both.begin() + static_cast<long>(second.size())));
}

TEST(Encode, RoundTripErrorFallsWithTheBits) {
    ThreadPool pool(2);
    const MatrixShape shape{256, 8, 1};
    const std::vector<float> weights = random_weights(shape.n_elements(), 3);
    const auto error = [&](ggml_type type) {
        const std::vector<float> back =
            decoded(type, encoded(type, weights, shape, random_importance(256, 4), pool),
                    shape.n_elements());
        double sum = 0.0;
        double norm = 0.0;
        for (size_t i = 0; i < weights.size(); ++i) {
            sum += std::pow(static_cast<double>(back[i] - weights[i]), 2);
            norm += std::pow(static_cast<double>(weights[i]), 2);
        }
        return std::sqrt(sum / norm);
    };
    EXPECT_LT(error(GGML_TYPE_Q8_0), 0.01);
    EXPECT_LT(error(GGML_TYPE_Q6_K), 0.03);
    EXPECT_LT(error(GGML_TYPE_Q4_K), 0.12);
    EXPECT_GT(error(GGML_TYPE_Q2_K), error(GGML_TYPE_Q3_K));
    EXPECT_GT(error(GGML_TYPE_Q3_K), error(GGML_TYPE_Q4_K));
    EXPECT_GT(error(GGML_TYPE_Q4_K), error(GGML_TYPE_Q6_K));
    EXPECT_EQ(error(GGML_TYPE_F32), 0.0);
}

TEST(Encode, BarsATypeWhoseBlockHasNoImportanceButWeights) {
    ThreadPool pool(2);
    const MatrixShape shape{512, 40, 1};
    std::vector<float> weights = random_weights(shape.n_elements(), 3);
    std::vector<float> importance = random_importance(512, 4);
    std::fill(importance.begin() + 256, importance.end(), 0.0f);
    std::vector<std::byte> bytes(size_bytes(GGML_TYPE_F32, 512, 40));
    const auto result = [&](ggml_type type) {
        return encode(Encoder(), type, weights.data(), shape, importance.data(), bytes.data(),
                      pool);
    };
    for (const TypeInfo& info : all_types()) {  // found before anything is encoded
        if (has_slow_tables(info.type)) continue;
        EXPECT_EQ(result(info.type).usable, info.imatrix == ImatrixNeed::none) << info.name;
    }
    EXPECT_NE(result(GGML_TYPE_Q4_K).reason.find("columns 256 to 511"), std::string::npos)
        << result(GGML_TYPE_Q4_K).reason;
    // Zero columns of padding are normal.
    for (int64_t row = 0; row < shape.n_rows; ++row) {
        std::fill_n(weights.begin() + row * 512 + 256, 256, 0.0f);
    }
    const auto expect_all_usable = [&] {
        for (const TypeInfo& info : all_types()) {
            if (has_slow_tables(info.type)) continue;
            EXPECT_TRUE(result(info.type).usable) << info.name;
        }
    };
    expect_all_usable();
    // So is a single zero importance.
    importance = random_importance(512, 4);
    importance[3] = 0.0f;
    expect_all_usable();
}

TEST(Encode, NamesTheFirstBadRowWhateverTheThreads) {
    const MatrixShape shape{256, 400, 1};
    std::vector<float> weights = random_weights(shape.n_elements(), 3);
    weights[256 * 77 + 5] = std::numeric_limits<float>::quiet_NaN();
    weights[256 * 390] = std::numeric_limits<float>::infinity();
    std::vector<std::byte> bytes(size_bytes(GGML_TYPE_Q8_0, 256, 400));
    for (const int n_threads : {1, 4}) {
        ThreadPool pool(n_threads);
        const EncodeResult result =
            encode(Encoder(), GGML_TYPE_Q8_0, weights.data(), shape, nullptr, bytes.data(), pool);
        EXPECT_FALSE(result.usable);
        EXPECT_NE(result.reason.find("not finite (row 77)"), std::string::npos) << result.reason;
    }
}

TEST(Encode, RefusesNonFiniteImportancesAndIllegalTypes) {
    ThreadPool pool(1);
    const MatrixShape shape{256, 2, 1};
    const std::vector<float> weights = random_weights(shape.n_elements(), 3);
    std::vector<std::byte> bytes(4096);
    std::vector<float> importance = random_importance(256, 1);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -1.0f, std::numeric_limits<float>::infinity()}) {
        importance[9] = bad;
        try {
            encode(Encoder(), GGML_TYPE_Q4_K, weights.data(), shape, importance.data(),
                   bytes.data(), pool);
            ADD_FAILURE() << bad;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::bad_file);
        }
    }
    EXPECT_THROW(
        encode(Encoder(), GGML_TYPE_IQ1_S, weights.data(), shape, nullptr, bytes.data(), pool),
        Error);
    EXPECT_THROW(
        encode(Encoder(), GGML_TYPE_Q4_K, weights.data(), {128, 2, 1}, nullptr, bytes.data(), pool),
        Error);
}

TEST(Encode, StopsWhenCancelled) {
    ThreadPool pool(2);
    const MatrixShape shape{256, 64, 1};
    const std::vector<float> weights = random_weights(shape.n_elements(), 3);
    std::vector<std::byte> bytes(size_bytes(GGML_TYPE_Q4_K, 256, 64));
    Cancellation cancellation;
    cancellation.request();
    try {
        encode(Encoder(), GGML_TYPE_Q4_K, weights.data(), shape, nullptr, bytes.data(), pool,
               &cancellation);
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::interrupted);
    }
}

TEST(Encode, NeverLetsGgmlAbortOnHostileNumbers) {
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) expect_no_abort(info);
    }
}

TEST(ToFloat, IsTheSameInParallelAndExactForHalfTypes) {
    ThreadPool pool(3);
    const MatrixShape shape{256, 300, 1};
    const std::vector<float> weights = random_weights(shape.n_elements(), 5);
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                 GGML_TYPE_Q6_K, GGML_TYPE_NVFP4}) {
        const std::vector<std::byte> bytes = encoded(type, weights, shape, {}, pool);
        const std::vector<float> serial = decoded(type, bytes, shape.n_elements());
        std::vector<float> parallel(serial.size());
        to_float(type, bytes.data(), parallel.data(), shape.n_elements(), pool);
        EXPECT_EQ(serial, parallel);
        std::vector<float> reference(serial.size());
        if (type == GGML_TYPE_F32) {
            reference = weights;
        } else {
            ggml_get_type_traits(type)->to_float(bytes.data(), reference.data(),
                                                 shape.n_elements());
        }
        EXPECT_EQ(serial, reference);
    }
}

}  // namespace
}  // namespace voodoo::quant
