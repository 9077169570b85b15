// The bytes of the output are those of llama-quantize with the recipe and the importance matrix
// that the run leaves behind.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/e2e_run.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

struct Case {
    std::string name;
    SourceOptions source;
    std::vector<std::string> types;
    std::vector<std::string> keep;
    double share = 0.6;
};

void PrintTo(const Case& c, std::ostream* out) {
    *out << c.name;
}

/// Quantizes, and has llama-quantize do the same with the run's recipe and importances.
void expect_same_bytes(const pipeline::Settings& settings) {
    quantize(settings);
    fs::path run = settings.output, theirs = settings.output;
    run += ".run";
    theirs += ".theirs";
    testing::run_llama_tool(
        "llama-quantize",
        {"--allow-requantize", "--imatrix", run / "imatrix.gguf", "--tensor-type-file",
         run / "recipe.txt", settings.model, theirs, "Q8_0", "2"});
    EXPECT_GT(expect_same_tensors(settings.output, theirs), 8);
    std::map<ggml_type, int> used;
    for (const auto& [name, type] : tensor_types(settings.output)) ++used[type];
    EXPECT_GE(used.size(), 3u) << "norms and a single type: a vacuous comparison";
}

class SameBytesAsLlamaQuantize : public ::testing::TestWithParam<Case> {};

TEST_P(SameBytesAsLlamaQuantize, GivenTheRecipeAndTheImatrixOfTheRun) {
    const TempFolder folder;
    const Case& c = GetParam();
    write_source(folder / "model.gguf", c.source);
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "ours.gguf");
    if (!c.types.empty()) settings.types = c.types;
    settings.keep = c.keep;
    settings.size_bytes = size_between(settings, c.share);
    expect_same_bytes(settings);
}

INSTANTIATE_TEST_SUITE_P(
    Sources, SameBytesAsLlamaQuantize,
    ::testing::Values(
        Case{"bf16", {}, {}, {}}, Case{"bf16_tied", {.tied = true}, {}, {}},
        Case{"f16_ternary_and_small_types",
             {.type = GGML_TYPE_F16},
             {"TQ1_0", "TQ2_0", "Q2_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "Q4_1", "Q5_1"},
             {},
             0.45},
        Case{"f32_to_half",
             {.type = GGML_TYPE_F32},
             {"Q4_K", "Q5_K", "Q8_0", "BF16", "F16"},
             {},
             0.7},
        Case{"q8_0", {.type = GGML_TYPE_Q8_0}, {}, {}, 0.7},
        Case{"bf16_rows_of_96", {.n_embd = 96}, {"Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0"}, {}},
        Case{"q8_0_rows_of_160_tied",
             {.type = GGML_TYPE_Q8_0, .n_embd = 160, .tied = true},
             {"Q4_0", "Q4_1", "Q5_0", "Q8_0"},
             {}},
        Case{"bf16_experts", {.n_expert = 20}, {"Q2_K", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS"}, {}},
        Case{"bf16_kept_tensors", {}, {}, {"output.weight", "blk.0.attn_v.weight"}}),
    [](const ::testing::TestParamInfo<Case>& test) { return test.param.name; });

/// Mixtures of experts as llama.cpp's own test makes them: expert biases, matrices by head beside
/// matrices by expert, experts fused with their gates, experts in chunks, short convolutions.
class SameBytesOfExperts : public ::testing::TestWithParam<const char*> {};

TEST_P(SameBytesOfExperts, GivenTheRecipeAndTheImatrixOfTheRun) {
    const TempFolder folder;
    testing::run_llama_tool("test-llama-archs", {"-a", GetParam(), "-o", folder / "."});
    pipeline::Settings settings =
        quick_settings(folder / (std::string(GetParam()) + "-moe.gguf"), folder / "ours.gguf");
    settings.text.clear();  // no tokenizer: the model writes
    settings.types = {"Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL"};
    settings.layout = pipeline::LayoutMethod::second_order;
    settings.size_bytes = size_between(settings, 0.5);
    expect_same_bytes(settings);
}

INSTANTIATE_TEST_SUITE_P(Generated, SameBytesOfExperts,
                         ::testing::Values("gpt-oss", "deepseek2", "grovemoe", "lfm2moe"),
                         [](const auto& test) {
                             std::string name = test.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace voodoo::e2e
