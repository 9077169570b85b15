#include "model/presets.h"

#include "base/files.h"
#include "model/tiny_model.h"

#include <gtest/gtest.h>

#include <set>

namespace voodoo::model {
namespace {

std::map<std::string, int> by_name(const std::vector<TensorType>& types) {
    std::map<std::string, int> result;
    for (const TensorType& tensor : types) {
        result[tensor.name] = tensor.type;
    }
    return result;
}

class Presets : public ::testing::Test {
protected:
    void SetUp() override {
        testing::TinyModelOptions options;
        options.n_layer = 8;  // so that the rules by layer have something to choose
        testing::write_tiny_model(model_, options);
    }
    testing::TempFolder folder_;
    std::filesystem::path model_ = folder_ / "m.gguf";
    std::filesystem::path quantized_ = folder_ / "q.gguf";
};

TEST_F(Presets, GiveTheTypesAndTheSizeThatLlamaQuantizeGives) {
    for (const char* name : {"Q4_K_M", "Q3_K_L", "Q4_0"}) {
        testing::run_llama_tool("llama-quantize", {model_, quantized_, name, "1"});
        const PresetLayout layout = preset_layout(model_, name, false);
        EXPECT_EQ(by_name(layout.types), testing::file_types(quantized_)) << name;
        EXPECT_EQ(layout.file_size_bytes, std::filesystem::file_size(quantized_)) << name;
    }
}

TEST_F(Presets, GiveTheTypesThatLlamaQuantizeGivesWithAnImatrix) {
    const std::filesystem::path text = folder_ / "t.txt";
    const std::filesystem::path imatrix = folder_ / "imatrix.gguf";
    const std::filesystem::path small =
        folder_ / "small.gguf";  // since IQ3_XXS takes long to encode
    write_file_atomic(text, testing::sample_text(600));
    testing::write_tiny_model(small);
    const std::vector<std::pair<std::filesystem::path, std::string>> cases = {{model_, "Q4_0"},
                                                                              {small, "IQ3_XXS"}};
    for (const auto& [source, name] : cases) {
        testing::run_llama_tool("llama-imatrix", {"-m", source, "-f", text, "-o", imatrix, "-c",
                                                  "128", "-t", "1", "--no-ppl"});
        testing::run_llama_tool("llama-quantize",
                                {"--imatrix", imatrix, source, quantized_, name, "1"});
        const PresetLayout layout = preset_layout(source, name, true);
        EXPECT_EQ(by_name(layout.types), testing::file_types(quantized_)) << name;
        const uint64_t size = std::filesystem::file_size(quantized_);
        EXPECT_LE(layout.file_size_bytes, size) << name;
        EXPECT_GE(layout.file_size_bytes + 1024, size) << name;
        // The reason for the flag: with an imatrix these presets choose otherwise.
        EXPECT_NE(preset_types(source, name, true), preset_types(source, name, false)) << name;
    }
}

TEST_F(Presets, AllHaveALayoutForADenseModel) {
    std::set<uint32_t> ftypes;
    double last_bpw = 0.0;
    for (const Preset& p : presets()) {
        EXPECT_GE(p.nominal_bpw, last_bpw) << p.name;
        last_bpw = p.nominal_bpw;
        EXPECT_TRUE(ftypes.insert(p.ftype).second) << p.name;
        const std::vector<TensorType> types = preset_types(model_, p.name, true);
        EXPECT_EQ(types.size(), 3u + 8u * 9u) << p.name;
    }
}

TEST_F(Presets, ReportWhatIsWrong) {
    EXPECT_THROW(preset("Q9_X"), Error);
    EXPECT_EQ(find_preset("Q9_X"), nullptr);
    EXPECT_EQ(preset("q4_k").name, "Q4_K_M");
    EXPECT_EQ(preset("iq3_xxs").ftype, 23u);
    const auto kind_of = [](const std::filesystem::path& path) {
        try {
            preset_layout(path, "Q4_K_M", true);
        } catch (const Error& error) {
            return error.kind();
        }
        return ErrorKind::internal;
    };
    EXPECT_EQ(kind_of(folder_ / "none.gguf"), ErrorKind::io);
    write_file_atomic(folder_ / "text.gguf", "no model");
    EXPECT_EQ(kind_of(folder_ / "text.gguf"), ErrorKind::bad_file);
}

TEST_F(Presets, AgreeWithTheRuleOfWhatMayBeQuantized) {
    LoadOptions vocab_only;
    vocab_only.vocab_only = true;
    const Model model = Model::load(model_, vocab_only);
    const std::vector<TensorShape> tensors = {{"blk.0.attn_q.weight", {256, 256, 1, 1}},
                                              {"token_embd.weight", {256, 260, 1, 1}},
                                              {"blk.0.ffn_up_exps.weight", {256, 256, 8, 1}},
                                              {"blk.0.attn_norm.weight", {256, 1, 1, 1}},
                                              {"blk.0.attn_q_norm.weight", {256, 4, 1, 1}},
                                              {"blk.0.ffn_gate_inp.weight", {256, 8, 1, 1}},
                                              {"blk.0.attn_q.bias", {256, 2, 1, 1}},
                                              {"abcde", {256, 256, 1, 1}},
                                              {"w", {256, 256, 1, 1}},
                                              {"", {256, 256, 1, 1}},
                                              {"weight", {256, 256, 1, 1}},
                                              {"x.weight", {256, 0, 1, 1}}};
    EXPECT_EQ(allows_quantization(model, tensors),
              (std::vector<bool>{true, true, true, false, false, false, false, false, false, false,
                                 true, false}));
}

TEST(FileType, IsTheOneThatLlamaCppWouldGuess) {
    EXPECT_EQ(ftype_for_type(GGML_TYPE_F32), 0u);
    EXPECT_EQ(ftype_for_type(GGML_TYPE_Q8_0), 7u);
    EXPECT_EQ(ftype_for_type(GGML_TYPE_Q4_K), 15u);
    EXPECT_EQ(ftype_for_type(GGML_TYPE_BF16), 32u);
    EXPECT_EQ(ftype_for_type(GGML_TYPE_IQ2_S), 28u);
    EXPECT_THROW(ftype_for_type(GGML_TYPE_I32), Error);
}

}  // namespace
}  // namespace voodoo::model
