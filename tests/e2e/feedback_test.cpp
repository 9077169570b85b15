// Error feedback on the trained tiny model: the file is closer to the original, and its bytes are
// still those that llama-quantize makes, of the adjusted source.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "e2e/e2e_run.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class ErrorFeedback : public ::testing::Test {
protected:
    ErrorFeedback() {
        settings.score_chunks = 4;
        settings.feedback = true;
        settings.feedback_tokens = 8192;
        settings.bpw = 3.9;
        settings.types = {"Q2_K", "Q3_K", "Q4_0", "IQ4_NL", "IQ4_XS", "Q4_K", "Q5_K"};
    }

    const TempFolder folder;
    pipeline::Settings settings = trained_settings(folder);
};

TEST_F(ErrorFeedback, LowersTheMeasuredDivergenceAtTheSameTypesAndSize) {
    const pipeline::QuantizeResult with = quantize(settings);
    ASSERT_FALSE(with.steps.empty());
    EXPECT_EQ(with.steps[0].step, "error feedback");
    EXPECT_TRUE(with.steps[0].kept);
    EXPECT_LT(with.steps[0].difference, -3.0 * with.steps[0].difference_error)
        << "a gain that is not clear";
    settings.feedback = false;
    settings.output = folder / "plain.gguf";
    const pipeline::QuantizeResult plain = quantize(settings);
    EXPECT_TRUE(plain.steps.empty() || plain.steps[0].step != "error feedback");
    EXPECT_EQ(plain.file_bytes, with.file_bytes);
    EXPECT_EQ(tensor_types(folder / "plain.gguf"), tensor_types(folder / "out.gguf"));
}

TEST_F(ErrorFeedback, GivesTheBytesOfLlamaQuantizeOnTheAdjustedSource) {
    settings.compare = false;
    settings.write_adjusted = folder / "adjusted.gguf";
    quantize(settings);
    testing::run_llama_tool(
        "llama-quantize",
        {"--allow-requantize", "--imatrix", folder / "run/imatrix.gguf", "--tensor-type-file",
         folder / "run/recipe.txt", folder / "adjusted.gguf", folder / "theirs.gguf", "Q8_0", "2"});
    EXPECT_GT(expect_same_tensors(folder / "out.gguf", folder / "theirs.gguf"), 8);
    testing::run_llama_tool(
        "llama-quantize",
        {"--allow-requantize", "--imatrix", folder / "run/imatrix.gguf", "--tensor-type-file",
         folder / "run/recipe.txt", settings.model, folder / "plain.gguf", "Q8_0", "2"});
    const gguf::File ours = gguf::File::open(folder / "out.gguf");
    const gguf::File plain = gguf::File::open(folder / "plain.gguf");
    int n_changed = 0;
    for (const gguf::TensorInfo& tensor : ours.tensors()) {
        const auto other = plain.data(*plain.find_tensor(tensor.name));
        const auto bytes = ours.data(tensor);
        if (!std::equal(bytes.begin(), bytes.end(), other.begin(), other.end())) ++n_changed;
    }
    EXPECT_GT(n_changed, 4) << "feedback changed nothing";
}

TEST_F(ErrorFeedback, IsPutBackWhenTheRunIsExportedAgain) {
    settings.compare = false;
    quantize(settings);
    const std::string first = read_file(settings.output);
    fs::remove(settings.output);
    Cancellation cancellation;
    pipeline::run_export(settings, {}, null_observer(), cancellation);
    EXPECT_EQ(read_file(settings.output), first);
    const pipeline::QuantizeResult again = quantize(settings);
    EXPECT_EQ(read_file(settings.output), first);
    const auto cached = std::find_if(again.stages.begin(), again.stages.end(),
                                     [](const auto& s) { return s.stage == "feedback"; });
    ASSERT_NE(cached, again.stages.end());
    EXPECT_TRUE(cached->from_cache);
}

}  // namespace
}  // namespace voodoo::e2e
