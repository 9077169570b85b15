#include "quant/feedback.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "feedback_data.h"

namespace voodoo::quant {
namespace {

/// A tensor, its input's moments, and what feedback makes of them.
struct Case {
    int64_t n;
    int64_t n_rows;
    ggml_type type;
    std::vector<float> moments;
    std::vector<float> importance;
    std::vector<float> weights;
    std::vector<float> adjusted;
    std::vector<std::byte> bytes;
    FeedbackResult result;

    Case(ggml_type t, int64_t columns, int64_t rows, uint64_t seed = 1)
        : n(columns),
          n_rows(rows),
          type(t),
          moments(correlated_moments(columns, seed)),
          importance(diagonal_of(moments, columns)),
          weights(random_weights(columns * rows, seed)),
          adjusted(weights.size(), -1.0f),
          bytes(size_bytes(t, columns, rows)) {}

    const FeedbackResult& run(const FeedbackOptions& options = {}, int n_threads = 2) {
        ThreadPool pool(n_threads);
        result = feedback(Encoder(), type, weights.data(), n_rows, n, moments.data(),
                          importance.empty() ? nullptr : importance.data(), adjusted.data(),
                          options, pool, nullptr, bytes.data());
        return result;
    }

    std::vector<std::byte> encoding(const std::vector<float>& rows) const {
        ThreadPool pool(2);
        return encoded(type, rows, {n, n_rows, 1}, importance, pool);
    }

    /// Error of the plain encoding of these rows against the weights.
    double error_of(const std::vector<float>& rows, double damping = 0.01) const {
        return moment_error(weights, decoded(type, encoding(rows), n * n_rows),
                            damped_moments(moments, n, damping), n);
    }
};

ErrorKind kind_of(Case& c) {
    try {
        c.run();
    } catch (const Error& error) {
        return error.kind();
    }
    return ErrorKind::internal;
}

constexpr ggml_type kTypes[] = {GGML_TYPE_Q2_K,    GGML_TYPE_Q3_K,  GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,
                                GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1,
                                GGML_TYPE_IQ4_NL,  GGML_TYPE_IQ4_XS};

TEST(Feedback, LowersTheErrorClearlyAndClaimsWhatTheBytesHave) {
    for (const ggml_type type : kTypes) {
        SCOPED_TRACE(std::string(type_info(type).name));
        Case c(type, 768, 80);
        const FeedbackResult& result = c.run();
        ASSERT_TRUE(result.usable) << result.reason;
        RecordProperty(std::string(type_info(type).name),
                       fmt::format("{:.3f}", result.error / result.error_plain));
        EXPECT_LT(result.error, 0.85 * result.error_plain);
        EXPECT_LT(result.error_sequential, 0.95 * result.error_plain);
        EXPECT_LT(result.error, result.error_sequential);
        EXPECT_NEAR(result.error_plain, c.error_of(c.weights), 1e-4 * result.error_plain);
        EXPECT_NEAR(result.error, c.error_of(c.adjusted), 1e-4 * result.error);
        EXPECT_EQ(c.bytes, c.encoding(c.adjusted));
        EXPECT_NE(c.bytes, c.encoding(c.weights));
    }
}

TEST(Feedback, EncodesBlocksToTheBytesThatTheRowGets) {
    // Without sweeps, the error as encoded block by block is the row's only where the bytes are.
    FeedbackOptions options;
    options.n_sweeps = 0;
    for (const ggml_type type : kTypes) {
        SCOPED_TRACE(std::string(type_info(type).name));
        Case c(type, 1536, 6);
        const FeedbackResult& result = c.run(options);
        ASSERT_EQ(result.n_rows_plain, 0);
        if (type_info(type).whole_row_statistics) {
            EXPECT_NE(result.error, result.error_sequential);
        } else {
            EXPECT_DOUBLE_EQ(result.error, result.error_sequential);
        }
    }
}

TEST(Feedback, GivesThePlainEncodingWhereInputsAreUncorrelated) {
    for (const ggml_type type : kTypes) {
        SCOPED_TRACE(std::string(type_info(type).name));
        Case c(type, 512, 16);
        for (int64_t i = 0; i < c.n; ++i) {
            for (int64_t j = 0; j < c.n; ++j) {
                c.moments[static_cast<size_t>(i * c.n + j)] = i == j ? 1.0f : 0.0f;
            }
        }
        const FeedbackResult& result = c.run();
        EXPECT_EQ(c.adjusted, c.weights);
        EXPECT_EQ(c.bytes, c.encoding(c.weights));
        EXPECT_EQ(result.error, result.error_plain);
        if (!type_info(type).whole_row_statistics) {
            EXPECT_EQ(result.error_sequential, result.error_plain);
        }
    }
}

/// The sequential pass as its formula reads, with explicit inverses.
std::vector<float> sequential_reference(const Case& c, size_t width) {
    const auto n = static_cast<size_t>(c.n);
    const auto rows = static_cast<size_t>(c.n_rows);
    const std::vector<double> h = damped_moments(c.moments, c.n, 0.01);
    std::vector<double> target(c.weights.begin(), c.weights.end());
    ThreadPool pool(1);
    for (size_t at = 0; at < n; at += width) {
        const size_t next = std::min(n, at + width);
        const std::vector<double> block = part_of(target, n, 0, rows, at, next);
        const std::vector<float> values(block.begin(), block.end());
        const MatrixShape shape{static_cast<int64_t>(next - at), c.n_rows, 1};
        const std::vector<float> back =
            decoded(c.type, encoded(c.type, values, shape, {}, pool), shape.n_elements());
        if (next == n) break;
        std::vector<double> error(block);
        for (size_t i = 0; i < error.size(); ++i) error[i] -= static_cast<double>(back[i]);
        const size_t rest = n - next;
        const std::vector<double> step =
            product_of(product_of(error, part_of(h, n, at, next, next, n), rows, next - at, rest),
                       inverse_of(part_of(h, n, next, n, next, n), rest), rows, rest, rest);
        for (size_t r = 0; r < rows; ++r) {
            for (size_t j = 0; j < rest; ++j) target[r * n + next + j] += step[r * rest + j];
        }
    }
    return {target.begin(), target.end()};
}

TEST(Feedback, SequentialPassIsItsFormulaWithExplicitInverses) {
    FeedbackOptions options;
    options.n_sweeps = 0;
    options.min_columns = 33;  // two blocks; the last group has one
    Case c(GGML_TYPE_Q4_1, 160, 5);
    c.importance.clear();
    const FeedbackResult& result = c.run(options);
    ASSERT_EQ(result.n_rows_plain, 0);
    const std::vector<float> expected = sequential_reference(c, 64);
    for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(c.adjusted[i], expected[i], 1e-5f) << "value " << i;
    }
}

TEST(Feedback, SweepTargetsTheMinimumOverAGroup) {
    // With one sweep over two groups the second group's target is known in closed form.
    FeedbackOptions options;
    options.min_columns = 32;
    Case c(GGML_TYPE_Q8_0, 64, 6);
    c.importance.clear();
    c.run(options);
    const std::vector<float> back = decoded(c.type, c.bytes, c.n * c.n_rows);
    const std::vector<double> h = damped_moments(c.moments, c.n, 0.01);
    const std::vector<double> step = product_of(
        part_of(h, 64, 0, 32, 32, 64), inverse_of(part_of(h, 64, 32, 64, 32, 64), 32), 32, 32, 32);
    for (size_t row = 0; row < static_cast<size_t>(c.n_rows); ++row) {
        for (size_t j = 0; j < 32; ++j) {
            double target = static_cast<double>(c.weights[row * 64 + 32 + j]);
            for (size_t i = 0; i < 32; ++i) {
                const size_t at = row * 64 + i;
                target += (static_cast<double>(c.weights[at]) - static_cast<double>(back[at])) *
                          step[i * 32 + j];
            }
            // Not beyond a step of the type: the descent may have stopped at an equal encoding.
            EXPECT_NEAR(back[row * 64 + 32 + j], target, 0.003) << row << " " << j;
        }
    }
}

TEST(Feedback, NeverRaisesTheErrorOfAnyRow) {
    for (const ggml_type type : kTypes) {
        SCOPED_TRACE(std::string(type_info(type).name));
        Case c(type, 256, 70, 3);
        c.run();
        const std::vector<double> h = damped_moments(c.moments, c.n, 0.01);
        const std::vector<float> plain = decoded(type, c.encoding(c.weights), c.n * c.n_rows);
        const std::vector<float> back = decoded(type, c.bytes, c.n * c.n_rows);
        int64_t n_source_rows = 0;
        for (int64_t r = 0; r < c.n_rows; ++r) {
            const auto row = [&](const std::vector<float>& values) {
                return std::vector<float>(values.begin() + r * c.n, values.begin() + (r + 1) * c.n);
            };
            EXPECT_LE(moment_error(row(c.weights), row(back), h, c.n),
                      (1.0 + 1e-5) * moment_error(row(c.weights), row(plain), h, c.n));
            n_source_rows += row(c.adjusted) == row(c.weights) ? 1 : 0;
        }
        EXPECT_GE(n_source_rows, c.result.n_rows_plain);
    }
}

TEST(Feedback, IsIndependentOfTheNumberOfThreads) {
    for (const ggml_type type : {GGML_TYPE_Q3_K, GGML_TYPE_Q4_0}) {
        Case one(type, 512, 150);
        Case four(type, 512, 150);
        one.run({}, 1);
        four.run({}, 4);
        EXPECT_EQ(one.adjusted, four.adjusted);
        EXPECT_EQ(one.bytes, four.bytes);
        EXPECT_EQ(one.result.error, four.result.error);
        EXPECT_EQ(one.result.error_sequential, four.result.error_sequential);
    }
}

TEST(Feedback, TakesRowsOfOneBlockAndOddNumbersOfBlocks) {
    for (const int64_t n : {32, 96, 288, 544}) {
        SCOPED_TRACE(n);
        Case c(GGML_TYPE_IQ4_NL, n, 3);
        const FeedbackResult& result = c.run();
        ASSERT_TRUE(result.usable);
        EXPECT_LE(result.error, result.error_plain);
        EXPECT_EQ(c.bytes, c.encoding(c.adjusted));
        EXPECT_NEAR(result.error, c.error_of(c.adjusted), 1e-4 * result.error);
    }
    Case single(GGML_TYPE_Q4_K, 256, 3);
    EXPECT_EQ(single.run().error, single.result.error_plain);
    EXPECT_EQ(single.adjusted, single.weights);
}

TEST(Feedback, EncodesStrongColumnsFirstWhereAsked) {
    Case c(GGML_TYPE_IQ4_NL, 352, 20);
    FeedbackOptions options;
    options.min_columns = 64;
    options.order = FeedbackOrder::decreasing_diagonal;
    const FeedbackResult& result = c.run(options);
    EXPECT_LT(result.error, 0.8 * result.error_plain);
    EXPECT_EQ(c.bytes, c.encoding(c.adjusted));
    EXPECT_NEAR(result.error, c.error_of(c.adjusted), 1e-4 * result.error);

    ThreadPool pool(1);
    const FeedbackFactors factors(c.moments.data(), c.n, 64, 0.01, options.order, pool);
    double last = std::numeric_limits<double>::infinity();
    for (const FeedbackFactors::Group& group : factors.groups()) {
        double mean = 0.0;
        for (int64_t i = 0; i < group.width; ++i) {
            mean += static_cast<double>(c.importance[static_cast<size_t>(group.stored + i)]);
        }
        mean /= static_cast<double>(group.width);
        EXPECT_LE(mean, last);
        last = mean;
    }
}

TEST(Feedback, LeavesPaddingAndUnseenBlocksAlone) {
    // The last 256 columns are padding: no weights, inputs or importances. Columns 10 and 11 are
    // dead inputs.
    Case c(GGML_TYPE_Q4_K, 768, 8);
    const auto clear = [&](int64_t column, bool weights) {
        for (int64_t j = 0; j < c.n; ++j) {
            c.moments[static_cast<size_t>(column * c.n + j)] = 0.0f;
            c.moments[static_cast<size_t>(j * c.n + column)] = 0.0f;
        }
        c.importance[static_cast<size_t>(column)] = 0.0f;
        for (int64_t r = 0; weights && r < c.n_rows; ++r) {
            c.weights[static_cast<size_t>(r * c.n + column)] = 0.0f;
        }
    };
    for (int64_t i = 512; i < 768; ++i) clear(i, true);
    clear(10, false);
    clear(11, false);
    const FeedbackResult& result = c.run();
    ASSERT_TRUE(result.usable) << result.reason;
    EXPECT_LT(result.error, 0.95 * result.error_plain);
    for (int64_t r = 0; r < c.n_rows; ++r) {
        for (int64_t i = 512; i < 768; ++i) {
            ASSERT_EQ(c.adjusted[static_cast<size_t>(r * c.n + i)], 0.0f);
        }
    }
}

TEST(Feedback, KeepsTheSourceOfBlocksWithoutImportanceEvenIfTheMomentsSeeThem) {
    Case c(GGML_TYPE_Q4_K, 768, 8);
    for (size_t i = 512; i < 768; ++i) c.importance[i] = 0.0f;
    EXPECT_FALSE(c.run().usable);
    EXPECT_NE(c.result.reason.find("all zero"), std::string::npos);
    EXPECT_EQ(c.adjusted, c.weights);
    for (int64_t r = 0; r < c.n_rows; ++r) {
        for (int64_t i = 512; i < 768; ++i) c.weights[static_cast<size_t>(r * c.n + i)] = 0.0f;
    }
    ASSERT_TRUE(c.run().usable) << c.result.reason;
    EXPECT_LT(c.result.error, c.result.error_plain);
    for (int64_t r = 0; r < c.n_rows; ++r) {
        for (int64_t i = 512; i < 768; ++i) {
            ASSERT_EQ(c.adjusted[static_cast<size_t>(r * c.n + i)], 0.0f);
        }
    }
}

TEST(Feedback, IsPlainForAnInputThatIsNeverUsed) {
    Case c(GGML_TYPE_Q3_K, 512, 8);
    std::fill(c.moments.begin(), c.moments.end(), 0.0f);
    ASSERT_TRUE(c.run().usable);
    EXPECT_EQ(c.adjusted, c.weights);
    EXPECT_EQ(c.bytes, c.encoding(c.weights));
    EXPECT_EQ(c.result.error, 0.0);
    EXPECT_EQ(c.result.n_rows_plain, 8);
}

TEST(Feedback, RefusesMomentsThatAreNone) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0f}) {
        Case c(GGML_TYPE_Q8_0, 64, 2);
        c.moments[65] = value;
        EXPECT_EQ(kind_of(c), ErrorKind::bad_file) << value;
    }
    Case indefinite(GGML_TYPE_Q8_0, 64, 2);
    indefinite.moments[1] = indefinite.moments[64] = 1e4f;
    EXPECT_EQ(kind_of(indefinite), ErrorKind::bad_file);
    Case zero_diagonal(GGML_TYPE_Q8_0, 64, 2);
    for (size_t i = 0; i < 64; ++i) zero_diagonal.moments[i * 65] = 0.0f;
    EXPECT_EQ(kind_of(zero_diagonal), ErrorKind::bad_file);
}

TEST(Feedback, TellsOfASourceThatCantBeEncoded) {
    Case c(GGML_TYPE_Q4_K, 512, 70);
    c.weights[66 * 512 + 3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(c.run().usable);
    EXPECT_NE(c.result.reason.find("row 66"), std::string::npos) << c.result.reason;
}

TEST(Feedback, StopsWhenCancelled) {
    Case c(GGML_TYPE_Q4_K, 512, 70);
    ThreadPool pool(2);
    Cancellation cancellation;
    cancellation.request();
    EXPECT_THROW(feedback(Encoder(), c.type, c.weights.data(), c.n_rows, c.n, c.moments.data(),
                          nullptr, c.adjusted.data(), {}, pool, &cancellation),
                 Error);
}

TEST(FeedbackFactors, AreTheProductsThatTheyStandFor) {
    constexpr size_t n = 160;
    const std::vector<float> moments = correlated_moments(n, 5);
    const std::vector<double> h = damped_moments(moments, n, 0.02);
    ThreadPool pool(3);
    const FeedbackFactors factors(moments.data(), n, 64, 0.02, FeedbackOrder::as_stored, pool);
    ASSERT_EQ(factors.groups().size(), 3u);
    for (size_t g = 0; g < 3; ++g) {
        const auto at = static_cast<size_t>(factors.groups()[g].position);
        const size_t next = at + static_cast<size_t>(factors.groups()[g].width);
        const std::vector<double> expected = product_of(
            part_of(h, n, at, next, next, n), inverse_of(part_of(h, n, next, n, next, n), n - next),
            next - at, n - next, n - next);
        for (size_t i = at; i < next; ++i) {
            for (size_t j = 0; j < n; ++j) {
                const double value = j < next ? 0.0 : expected[(i - at) * (n - next) + (j - next)];
                ASSERT_NEAR(factors.forward()[i * n + j], value, 1e-5) << i << " " << j;
            }
        }
        const std::vector<double> inverse =
            inverse_of(part_of(h, n, at, next, at, next), next - at);
        for (size_t i = 0; i < inverse.size(); ++i) {
            ASSERT_NEAR(factors.inverse(g)[i], inverse[i], 1e-5);
        }
    }
}

}  // namespace
}  // namespace voodoo::quant
