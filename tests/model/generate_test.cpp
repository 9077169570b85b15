#include "model/generate.h"

#include "model/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace voodoo::model {
namespace {

GenerateOptions small_options() {
    GenerateOptions options;
    options.n_chunks = 5;
    options.chunk_len = 48;
    options.n_parallel = 2;  // so that the last group is smaller than the others
    options.n_threads = 1;
    return options;
}

class Generate : public ::testing::Test {
protected:
    void SetUp() override {
        testing::write_tiny_model(folder_ / "m.gguf");
        model_.emplace(Model::load(folder_ / "m.gguf"));
    }
    TokenChunks run(const GenerateOptions& options) {
        return generate(*model_, options, null_observer(), cancellation_);
    }
    testing::TempFolder folder_;
    std::optional<Model> model_;
    Cancellation cancellation_;
};

TEST_F(Generate, GivesTheSameTokensForTheSameSeed) {
    const TokenChunks a = run(small_options());
    EXPECT_EQ(a.n_chunks(), 5);
    EXPECT_EQ(a.chunk_len, 48);
    EXPECT_EQ(token_hash(a), token_hash(run(small_options())));
    GenerateOptions other = small_options();
    other.seed = 2;
    EXPECT_NE(token_hash(a), token_hash(run(other)));
    EXPECT_NE(std::vector(a.chunk(0).begin(), a.chunk(0).end()),
              std::vector(a.chunk(1).begin(), a.chunk(1).end()));
}

TEST_F(Generate, BeginsDocumentsWithBosAlsoAfterAnEnd) {
    GenerateOptions options = small_options();
    options.n_chunks = 8;
    options.n_parallel = 8;
    options.chunk_len = 256;
    options.temperature = 2.0;  // nearly uniform over the vocabulary, so that EOS comes
    const TokenChunks chunks = run(options);
    int n_ends = 0;
    for (int32_t i = 0; i < chunks.n_chunks(); ++i) {
        const auto chunk = chunks.chunk(i);
        EXPECT_EQ(chunk[0], testing::kBos);
        for (size_t k = 0; k + 1 < chunk.size(); ++k) {
            ASSERT_TRUE(chunk[k] >= 0 && chunk[k] < testing::kVocab);
            if (is_end_of_generation(*model_, chunk[k])) {
                ++n_ends;
                EXPECT_EQ(chunk[k + 1], testing::kBos);
            }
        }
    }
    EXPECT_GT(n_ends, 0) << "the case was not met";
}

TEST_F(Generate, StartsRandomlyWhenAsked) {
    GenerateOptions options = small_options();
    options.start = StartToken::random;
    options.chunk_len = 2;
    const TokenChunks chunks = run(options);
    int n_bos = 0;
    for (int32_t i = 0; i < chunks.n_chunks(); ++i) {
        n_bos += chunks.chunk(i)[0] == testing::kBos ? 1 : 0;
    }
    EXPECT_LT(n_bos, chunks.n_chunks());
}

TEST_F(Generate, RefusesBadOptionsAndStopsWhenCancelled) {
    GenerateOptions options = small_options();
    options.temperature = 0.0;
    EXPECT_THROW(run(options), Error);
    options = small_options();
    options.chunk_len = 1;
    EXPECT_THROW(run(options), Error);
    cancellation_.request();
    try {
        run(small_options());
        FAIL() << "it was not interrupted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::interrupted);
    }
}

TEST(SampleToken, InvertsTheCumulativeDistribution) {
    // Probabilities 0.25, 0, 0.5, 0.25.
    const std::vector<float> logits = {0.0f, -std::numeric_limits<float>::infinity(),
                                       std::log(2.0f), 0.0f};
    EXPECT_EQ(sample_token(logits, 1.0, 0.0), 0);
    EXPECT_EQ(sample_token(logits, 1.0, 0.249), 0);
    EXPECT_EQ(sample_token(logits, 1.0, 0.251), 2);
    EXPECT_EQ(sample_token(logits, 1.0, 0.749), 2);
    EXPECT_EQ(sample_token(logits, 1.0, 0.751), 3);
    EXPECT_EQ(sample_token(logits, 1.0, 0.9999999999), 3);
    // At half the temperature the weights are 1, 4, 1.
    EXPECT_EQ(sample_token(logits, 0.5, 0.16), 0);
    EXPECT_EQ(sample_token(logits, 0.5, 0.17), 2);
}

TEST(SampleToken, RefusesLogitsThatAreNotFinite) {
    const float inf = std::numeric_limits<float>::infinity();
    EXPECT_EQ(sample_token(std::vector<float>{0.0f, inf}, 1.0, 0.5), -1);
    EXPECT_EQ(sample_token(std::vector<float>{0.0f, std::nanf("")}, 1.0, 0.5), -1);
    EXPECT_EQ(sample_token(std::vector<float>{-inf, -inf}, 1.0, 0.5), -1);
}

}  // namespace
}  // namespace voodoo::model
