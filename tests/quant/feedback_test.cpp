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

/// Message of the bad_file error that running the case throws; empty if it throws none.
std::string refusal_of(Case& c) {
    try {
        c.run();
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::bad_file) return error.message();
    }
    return {};
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

/// The sequential pass as one formula with explicit inverses: with the columns P encoded, the best
/// target of the rest R is W_R + (W_P - What_P) H_PR inverse(H_RR). A block is encoded for each of
/// its groups; the last encoding stays.
std::vector<float> sequential_reference(const Case& c, FeedbackColumns columns) {
    const auto n = static_cast<size_t>(c.n);
    const auto rows = static_cast<size_t>(c.n_rows);
    const std::vector<double> h = damped_moments(c.moments, c.n, 0.01);
    const std::vector<double> weights(c.weights.begin(), c.weights.end());
    std::vector<double> target = weights;
    std::vector<double> error(weights.size(), 0.0);
    std::vector<float> sources(weights.size());
    ThreadPool pool(1);
    for (size_t at = 0, next = 0; at < n; at = next) {
        const size_t block = at - at % static_cast<size_t>(columns.block);
        const size_t end = std::min(n, block + static_cast<size_t>(columns.block));
        next = std::min(end, at + static_cast<size_t>(columns.group));
        const size_t rest = n - at;
        const std::vector<double> step =
            product_of(product_of(part_of(error, n, 0, rows, 0, at), part_of(h, n, 0, at, at, n),
                                  rows, at, rest),
                       inverse_of(part_of(h, n, at, n, at, n), rest), rows, rest, rest);
        for (size_t r = 0; r < rows; ++r) {
            for (size_t j = 0; j < rest; ++j) {
                target[r * n + at + j] = weights[r * n + at + j] + step[r * rest + j];
            }
        }
        const std::vector<double> part = part_of(target, n, 0, rows, block, end);
        const std::vector<float> values(part.begin(), part.end());
        const MatrixShape shape{static_cast<int64_t>(end - block), c.n_rows, 1};
        const std::vector<float> back =
            decoded(c.type, encoded(c.type, values, shape, {}, pool), shape.n_elements());
        for (size_t r = 0; r < rows; ++r) {
            for (size_t j = next == end ? block : at; j < next; ++j) {
                const size_t i = r * (end - block) + j - block;
                error[r * n + j] = weights[r * n + j] - static_cast<double>(back[i]);
                sources[r * n + j] = values[i];
            }
        }
    }
    return sources;
}

TEST(Feedback, SequentialPassIsItsFormulaWithExplicitInverses) {
    FeedbackOptions options;
    options.n_sweeps = 0;
    options.order = FeedbackOrder::as_stored;
    const auto expect_formula = [&](ggml_type type, int64_t n, FeedbackColumns columns) {
        SCOPED_TRACE(std::string(type_info(type).name));
        Case c(type, n, 8);
        c.importance.clear();
        const FeedbackResult& result = c.run(options);
        ASSERT_EQ(feedback_columns(type, options), columns);
        const std::vector<float> expected = sequential_reference(c, columns);
        int64_t n_equal = 0;
        for (int64_t r = 0; r < c.n_rows; ++r) {
            bool equal = true;
            for (auto i = static_cast<size_t>(r * n); i < static_cast<size_t>((r + 1) * n); ++i) {
                equal &= std::fabs(c.adjusted[i] - expected[i]) < 1e-5f;
            }
            n_equal += equal ? 1 : 0;
        }
        // Rows that feedback made worse keep their source. And where a value lies between two
        // steps of the type, float and double may round it to either side.
        EXPECT_LE(result.n_rows_plain, 3);
        EXPECT_GE(n_equal, c.n_rows - result.n_rows_plain - 1);
    };
    expect_formula(GGML_TYPE_Q4_1, 160, {32, 32});
    expect_formula(GGML_TYPE_Q6_K, 512, {256, 64});
    options.min_columns = 33;  // two blocks; the last part of a row has one
    expect_formula(GGML_TYPE_Q4_1, 160, {64, 64});
    options.sub_columns = 96;  // no divisor
    expect_formula(GGML_TYPE_Q3_K, 512, {256, 96});
}

/// One sweep over groups of 32 as its formula reads: changes `adjusted` and what it decodes to.
void sweep_reference(const Case& c, std::vector<float>& adjusted, std::vector<float>& back) {
    const auto n = static_cast<size_t>(c.n);
    const auto rows = static_cast<size_t>(c.n_rows);
    const std::vector<double> h = damped_moments(c.moments, c.n, 0.01);
    ThreadPool pool(1);
    for (size_t at = 0; at < n; at += 32) {
        std::vector<double> others(rows * n);
        for (size_t i = 0; i < others.size(); ++i) {
            const bool own = i % n >= at && i % n < at + 32;
            others[i] =
                own ? 0.0 : static_cast<double>(c.weights[i]) - static_cast<double>(back[i]);
        }
        const std::vector<double> step =
            product_of(product_of(others, part_of(h, n, 0, n, at, at + 32), rows, n, 32),
                       inverse_of(part_of(h, n, at, at + 32, at, at + 32), 32), rows, 32, 32);
        std::vector<float> target(step.begin(), step.end());
        for (size_t i = 0; i < target.size(); ++i) target[i] += c.weights[i / 32 * n + at + i % 32];
        const MatrixShape shape{32, c.n_rows, 1};
        const std::vector<float> block =
            decoded(c.type, encoded(c.type, target, shape, {}, pool), shape.n_elements());
        for (size_t r = 0; r < rows; ++r) {
            const auto begin = static_cast<std::ptrdiff_t>(r * n);
            const auto end = begin + c.n;
            const std::vector<float> source(c.weights.begin() + begin, c.weights.begin() + end);
            const std::vector<float> before(back.begin() + begin, back.begin() + end);
            std::vector<float> after = before;
            for (size_t j = 0; j < 32; ++j) after[at + j] = block[r * 32 + j];
            if (moment_error(source, after, h, c.n) >= moment_error(source, before, h, c.n))
                continue;
            std::copy(after.begin(), after.end(), back.begin() + begin);
            for (size_t j = 0; j < 32; ++j) adjusted[r * n + at + j] = target[r * 32 + j];
        }
    }
}

TEST(Feedback, SweepIsItsFormulaWithExplicitInverses) {
    FeedbackOptions options;
    options.order = FeedbackOrder::as_stored;
    options.n_sweeps = 0;
    Case c(GGML_TYPE_Q4_1, 320, 12);
    c.importance.clear();
    ASSERT_LE(c.run(options).n_rows_plain, 1);
    std::vector<float> expected = c.adjusted;
    std::vector<float> back = decoded(c.type, c.bytes, c.n * c.n_rows);
    sweep_reference(c, expected, back);
    ASSERT_NE(c.adjusted, expected);
    options.n_sweeps = 1;
    c.run(options);
    int64_t n_equal = 0;
    for (size_t r = 0; r < 12; ++r) {
        bool equal = true;
        for (size_t i = r * 320; i < (r + 1) * 320; ++i) {
            equal &= std::fabs(c.adjusted[i] - expected[i]) < 1e-5f;
        }
        n_equal += equal ? 1 : 0;
    }
    EXPECT_GE(n_equal, 10);  // see above
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
    // One block can only be made good within itself.
    Case single(GGML_TYPE_Q4_K, 256, 3);
    single.run();
    EXPECT_LT(single.result.error, 0.8 * single.result.error_plain);
    FeedbackOptions whole;
    whole.sub_columns = 256;
    single.run(whole);
    EXPECT_EQ(single.result.error, single.result.error_plain);
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
    const FeedbackFactors factors(c.moments.data(), c.n, {64, 64}, 0.01, options.order, pool);
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

TEST(Feedback, AdjustsTheRestOfAGroupWhereOneBlockHasNoImportance) {
    Case c(GGML_TYPE_IQ4_NL, 256, 4);
    for (size_t i = 224; i < 256; ++i) c.importance[i] = 0.0f;
    for (size_t i = 0; i < c.weights.size(); ++i)
        c.weights[i] = i % 256 >= 224 ? 0.0f : c.weights[i];
    FeedbackOptions options;
    options.min_columns = 64;
    options.order = FeedbackOrder::as_stored;
    ASSERT_TRUE(c.run(options).usable) << c.result.reason;
    ASSERT_EQ(c.result.n_rows_plain, 0);
    for (size_t r = 0; r < 4; ++r) {
        EXPECT_NE(c.adjusted[r * 256 + 200], c.weights[r * 256 + 200]);
        EXPECT_EQ(c.adjusted[r * 256 + 230], 0.0f);
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
        EXPECT_NE(refusal_of(c).find("not finite"), std::string::npos) << value;
    }
    const std::string indefinite = "not positive definite";
    for (const size_t column : {1, 40}) {  // within a group, across groups
        Case c(GGML_TYPE_Q8_0, 64, 2);
        c.moments[column] = c.moments[64 * column] = 1e4f;
        EXPECT_NE(refusal_of(c).find(indefinite), std::string::npos) << column;
    }
    Case zero_diagonal(GGML_TYPE_Q8_0, 64, 2);
    for (size_t i = 0; i < 64; ++i) zero_diagonal.moments[i * 65] = 0.0f;
    EXPECT_NE(refusal_of(zero_diagonal).find(indefinite), std::string::npos);
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
    const FeedbackColumns columns = feedback_columns(c.type, {});
    const auto factors = [&](const Cancellation* cancelled) {
        return FeedbackFactors(c.moments.data(), c.n, columns, 0.01, FeedbackOrder::as_stored, pool,
                               cancelled);
    };
    EXPECT_THROW(factors(&cancellation), Error);
    EXPECT_THROW(feedback(Encoder(), c.type, c.weights.data(), c.n_rows, factors(nullptr), nullptr,
                          c.adjusted.data(), {}, pool, &cancellation),
                 Error);
}

TEST(FeedbackFactors, AreTheProductsThatTheyStandFor) {
    constexpr size_t n = 160;
    const std::vector<float> moments = correlated_moments(n, 5);
    const std::vector<double> h = damped_moments(moments, n, 0.02);
    ThreadPool pool(3);
    const FeedbackFactors factors(moments.data(), n, {64, 64}, 0.02, FeedbackOrder::as_stored,
                                  pool);
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
