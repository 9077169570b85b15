#include "pipeline/select.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/tiny_model.h"
#include "pipeline/settings_toml.h"

namespace voodoo::pipeline {
namespace {

TEST(MeanKlOfTokens, HasTheStandardErrorOfTheChunksMeans) {
    const std::vector<float> tokens = {1, 3, 2, 2, 5, 7};  // means 2, 2, 6
    const MeanKl kl = mean_kl(tokens, 2);
    EXPECT_NEAR(kl.mean, 10.0 / 3.0, 1e-12);
    const double variance = (2 * std::pow(4.0 / 3.0, 2) + std::pow(8.0 / 3.0, 2)) / 2.0;
    EXPECT_NEAR(kl.error, std::sqrt(variance / 3.0), 1e-12);
    EXPECT_EQ(mean_kl({1, 3}, 2).error, 0.0) << "one chunk says nothing about the error";
    EXPECT_EQ(mean_kl({}, 2).mean, 0.0);
}

class PlannedSizes : public ::testing::Test {
protected:
    PlannedSizes() {
        voodoo::testing::write_tiny_model(folder / "model.gguf");
        settings.model = folder / "model.gguf";
        settings.n_threads = 1;
    }
    const voodoo::testing::TempFolder folder;
    Settings settings;
};

TEST_F(PlannedSizes, AddUpToThatOfTheFileWhateverTheTypes) {
    const Workbench bench(settings, null_observer());
    ASSERT_FALSE(bench.tensors().empty());
    for (const ggml_type type : {GGML_TYPE_Q2_K, GGML_TYPE_Q8_0, GGML_TYPE_BF16}) {
        std::map<std::string, ggml_type> types;
        uint64_t sum = bench.fixed_bytes();
        for (const Tensor& tensor : bench.tensors()) {
            types.emplace(tensor.name, type);
            sum += bench.padded_bytes(tensor, type);
        }
        EXPECT_EQ(sum, bench.output_size(types)) << ggml_type_name(type);
    }
}

TEST_F(PlannedSizes, ShrinkWithTheWhitelistAndThePins) {
    const SizeRange all = attainable_range(Workbench(settings, null_observer()));
    settings.types = {"Q4_K", "Q6_K"};
    const SizeRange listed = attainable_range(Workbench(settings, null_observer()));
    EXPECT_GT(listed.min, all.min);
    EXPECT_LT(listed.max, all.max);
    settings.keep = {"output.weight"};
    const SizeRange kept = attainable_range(Workbench(settings, null_observer()));
    EXPECT_GT(kept.min, listed.min);
    settings.keep.clear();
    settings.tensor_types = {{"output.weight", "Q4_K"}};
    const SizeRange pinned = attainable_range(Workbench(settings, null_observer()));
    EXPECT_EQ(pinned.min, listed.min);
    EXPECT_LT(pinned.max, listed.max);
}

TEST_F(PlannedSizes, CountNoTypeThatNeedsImportancesForAnEmbeddingThatGetsNone) {
    settings.types = {"IQ2_XXS", "Q4_K"};
    const Workbench bench(settings, null_observer());
    const Tensor& embedding =
        bench.tensors()[static_cast<size_t>(bench.find_tensor("token_embd.weight"))];
    EXPECT_FALSE(bench.gets_importance(embedding));
    std::map<std::string, ggml_type> types;
    for (const Tensor& tensor : bench.tensors()) types[tensor.name] = GGML_TYPE_IQ2_XXS;
    types["token_embd.weight"] = GGML_TYPE_Q4_K;
    EXPECT_EQ(attainable_range(bench).min, bench.output_size(types));
}

TEST_F(PlannedSizes, SurviveThatEveryTensorIsKept) {
    const Workbench bench(settings, null_observer());
    for (const Tensor& tensor : bench.tensors()) settings.keep.push_back(tensor.name);
    const SizeRange range = attainable_range(Workbench(settings, null_observer()));
    EXPECT_EQ(range.min, range.max);
}

TEST_F(PlannedSizes, ComeFromEveryPresetThatFitsTheRows) {
    const Workbench bench(settings, null_observer());
    for (const model::Preset& preset : model::presets())
        EXPECT_TRUE(try_preset_layout(bench, preset.name).has_value()) << preset.name;
    voodoo::testing::write_tiny_model(folder / "narrow.gguf", {.n_embd = 96});
    settings.model = folder / "narrow.gguf";
    const Workbench narrow(settings, null_observer());
    EXPECT_FALSE(try_preset_layout(narrow, "Q1_0").has_value()) << "blocks of 128";
    EXPECT_TRUE(try_preset_layout(narrow, "Q4_K_M").has_value());
    EXPECT_THROW(try_preset_layout(narrow, "NO_PRESET"), Error);
}

}  // namespace
}  // namespace voodoo::pipeline
