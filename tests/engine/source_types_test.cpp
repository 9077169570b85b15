// The whole-model check on sources that test-llama-archs does not make: BF16, F16 and Q8_0 weights,
// and rows that are no multiple of 32.
#include <gtest/gtest.h>

#include "e2e/e2e_run.h"
#include "engine/whole_model.h"

namespace voodoo::engine {
namespace {

struct Source {
    const char* name;
    ggml_type type;
    int n_embd;
    bool tied;
    int n_expert = 0;
    int n_expert_groups = 0;
};

class SourceTypes : public ::testing::TestWithParam<Source> {};

TEST_P(SourceTypes, ReplayAsStoredAndDifferentiateInF32) {
    const e2e::TempFolder folder;
    e2e::SourceOptions source;
    source.type = GetParam().type;
    source.n_embd = GetParam().n_embd;
    source.tied = GetParam().tied;
    source.n_expert = GetParam().n_expert;
    source.n_expert_groups = GetParam().n_expert_groups;
    e2e::write_source(folder / "model.gguf", source);
    CheckOptions options;
    options.stored_types = true;
    const ModelCheck check = check_model(folder / "model.gguf", options);
    EXPECT_TRUE(check.unsupported.empty());
    EXPECT_LE(check.replay_error, 1e-4);
    ASSERT_FALSE(check.tensors.empty());
    for (const TensorCheck& tensor : check.tensors) {
        EXPECT_LE(tensor.error, 1e-2)
            << tensor.name << ": analytic " << tensor.analytic << ", numeric " << tensor.numeric;
        EXPECT_LE(tensor.noise, 8e-2) << tensor.name;
    }
}

INSTANTIATE_TEST_SUITE_P(All, SourceTypes,
                         ::testing::Values(Source{"bf16", GGML_TYPE_BF16, 256, false},
                                           Source{"f16", GGML_TYPE_F16, 256, false},
                                           Source{"q8_0_tied", GGML_TYPE_Q8_0, 256, true},
                                           Source{"q8_0_experts", GGML_TYPE_Q8_0, 256, false, 20},
                                           Source{"bf16_experts_in_groups", GGML_TYPE_BF16, 256,
                                                  false, 20, 5},
                                           Source{"bf16_rows_of_104", GGML_TYPE_BF16, 104, true},
                                           Source{"f32_rows_of_104", GGML_TYPE_F32, 104, false}),
                         [](const auto& source) { return std::string(source.param.name); });

}  // namespace
}  // namespace voodoo::engine
