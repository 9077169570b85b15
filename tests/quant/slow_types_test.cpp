// What types_test, codec_test and feedback_test check, for the types whose tables take seconds to
// build.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "feedback_data.h"
#include "quant/feedback.h"
#include "type_checks.h"

namespace voodoo::quant {
namespace {

TEST(SlowTypes, UseTheImatrixAsTheTableSays) {
    int n_types = 0;
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) continue;
        expect_true_imatrix_facts(info);
        ++n_types;
    }
    EXPECT_EQ(n_types, 5);
}

TEST(SlowTypes, NeverLetGgmlAbortOnHostileNumbers) {
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) continue;
        ggml_quantize_init(info.type);  // before the fork, so that the child has the tables
        expect_no_abort(info);
    }
}

TEST(SlowTypes, GainByErrorFeedbackAndClaimWhatTheBytesHave) {
    const MatrixShape shape{512, 12, 1};
    const std::vector<float>& moments = correlated_moments(512, 1);
    const std::vector<float> importance = diagonal_of(moments, 512);
    const std::vector<float> weights = random_weights(shape.n_elements(), 1);
    std::vector<float> adjusted(weights.size());
    ThreadPool pool(2);
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) continue;
        SCOPED_TRACE(std::string(info.name));
        const FeedbackResult result =
            feedback(Encoder(), info.type, weights.data(), 12, 512, moments.data(),
                     importance.data(), adjusted.data(), {}, pool);
        ASSERT_TRUE(result.usable) << result.reason;
        RecordProperty(std::string(info.name),
                       fmt::format("{:.3f}", result.error / result.error_plain));
        EXPECT_LT(result.error, 0.7 * result.error_plain);
        const std::vector<float> back =
            decoded(info.type, encoded(info.type, adjusted, shape, importance, pool), 12 * 512);
        EXPECT_NEAR(result.error,
                    moment_error(weights, back, damped_moments(moments, 512, 0.01), 512),
                    1e-4 * result.error);
    }
}

}  // namespace
}  // namespace voodoo::quant
