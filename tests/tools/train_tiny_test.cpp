// A few steps on a simple text must lower the loss, and llama.cpp must find the same loss in the
// file: one check of capture, all gradients of a model, its update and its export.
#include "tools/train_tiny.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "model/tiny_model.h"

namespace voodoo::tools {
namespace {

/// Sentences of a few words in random order: within a word every letter but the first is certain.
std::string word_text(size_t n, uint64_t seed) {
    const char* const words[] = {"tensor ",   "layer ",   "weight ",
                                 "gradient ", "quantum ", "block.\n"};
    Random random(seed, "words");
    std::string text;
    while (text.size() < n) {
        text += words[random.below(std::size(words))];
    }
    return text;
}

TrainOptions small_options() {
    TrainOptions options;
    options.shape.n_ff = 256;
    options.shape.n_layer = 1;
    options.shape.n_ctx = 128;
    options.n_sequences = 2;
    options.n_steps = 40;
    options.n_warmup = 5;
    options.n_threads = 1;
    options.peak_lr = 3e-3;
    return options;
}

/// What llama-perplexity prints as its final estimate.
double llama_perplexity(const std::filesystem::path& model, const std::filesystem::path& text) {
    const std::string mark = "Final estimate: PPL = ";
    const std::string output = testing::run_llama_tool_until(
        "llama-perplexity",
        {"-m", model.string(), "-f", text.string(), "-c", "128", "-b", "128", "-t", "1"}, mark);
    const size_t at = output.find(mark);
    if (at == std::string::npos) {
        ADD_FAILURE() << output;
        return NAN;
    }
    return std::stod(output.substr(at + mark.size()));
}

void expect_that_words_are_learned(const TrainOptions& options) {
    testing::TempFolder folder;
    // 31 chunks of validation text: the last step of two sequences is not full.
    const TextSplit split{word_text(20000, 1), word_text(4000, 2)};
    const TrainResult result =
        train_tiny(folder / "tiny.gguf", split, options, [](const std::string&) {});
    EXPECT_NEAR(result.first_valid_loss, std::log(260.0), 0.5)
        << "an untrained model knows nothing";
    EXPECT_GT(result.unigram_entropy, 2.0);
    EXPECT_LT(result.valid_loss, 0.7 * result.unigram_entropy);

    std::ofstream(folder / "valid.txt") << split.valid;
    const double perplexity = llama_perplexity(folder / "tiny.gguf", folder / "valid.txt");
    // llama.cpp computes with BF16 products and an F16 cache.
    EXPECT_NEAR(std::log(perplexity), result.valid_loss, 0.01);
}

TEST(TrainTiny, LearnsWordsAndLlamaPerplexityFindsTheSameLoss) {
    expect_that_words_are_learned(small_options());
}

TEST(TrainTiny, OfExpertsHasTheLossThatLlamaPerplexityFinds) {
    TrainOptions options = small_options();
    options.shape.n_expert = 8;
    options.shape.n_expert_used = 2;
    expect_that_words_are_learned(options);
}

TEST(TrainTiny, RefusesToUseMoreExpertsThanThereAre) {
    testing::TempFolder folder;
    TrainOptions options = small_options();
    options.shape.n_expert = 2;
    options.shape.n_expert_used = 3;
    const TextSplit split{word_text(4000, 1), word_text(600, 2)};
    EXPECT_THROW(train_tiny(folder / "tiny.gguf", split, options, [](const std::string&) {}),
                 Error);
    EXPECT_FALSE(std::filesystem::exists(folder / "tiny.gguf"));
}

TEST(TrainTiny, SameSeedGivesTheSameFile) {
    testing::TempFolder folder;
    const TextSplit split{word_text(4000, 1), word_text(600, 2)};
    TrainOptions options = small_options();
    options.n_steps = 3;
    const auto train = [&](const char* name) {
        train_tiny(folder / name, split, options, [](const std::string&) {});
        std::ifstream file(folder / name, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string first = train("a.gguf");
    EXPECT_EQ(first, train("b.gguf"));
    options.seed = 2;
    EXPECT_NE(first, train("c.gguf"));
}

TEST(TrainTiny, UnigramEntropyIsThatOfTheFrequencies) {
    const std::vector<int32_t> tokens = {5, 5, 7, 9};
    EXPECT_NEAR(unigram_entropy(tokens), 1.5 * std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace voodoo::tools
