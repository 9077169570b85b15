// The importance matrix of a run is what llama-imatrix computes on the same tokens, and has the
// head of a tied embedding besides.
#include "quant/imatrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "e2e/e2e_run.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

/// A text whose chunks llama-imatrix cuts into the run's training tokens: the first token of each
/// chunk becomes BOS whatever it is, the others are bytes.
std::string text_of_training_tokens(const fs::path& run_dir, int32_t chunk_len) {
    const std::string bytes = read_file(run_dir / "tokens.i32");
    std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    const auto record = nlohmann::json::parse(read_file(run_dir / "tokens.stage.json"));
    const auto n_train = record["n_train_batches"].get<size_t>();
    const auto n_batches = n_train + record["n_valid_batches"].get<size_t>();
    tokens.resize(tokens.size() / n_batches * n_train);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const int32_t token = tokens[i];
        if (i == 0) continue;  // the tokenizer puts BOS there
        if (i % static_cast<size_t>(chunk_len) == 0) {
            EXPECT_EQ(token, testing::kBos);
            text += 'x';
        } else if (token == testing::kVocab - 1) {
            text += ' ';
        } else {
            EXPECT_TRUE(token >= testing::kFirstByte && token < testing::kFirstByte + 256) << token;
            text += static_cast<char>(token - testing::kFirstByte);
        }
    }
    return text;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        norm += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(difference / norm);
}

/// `tolerance`: of an entry, relative. Theirs is computed on `theirs_on`, a copy of the weights in
/// that type.
void expect_agreement_with_llama_imatrix(const SourceOptions& source, ggml_type theirs_on,
                                         double tolerance) {
    const TempFolder folder;
    write_source(folder / "model.gguf", source);
    SourceOptions copy = source;
    copy.type = theirs_on;
    write_source(folder / "copy.gguf", copy);
    pipeline::Settings settings = quick_settings(folder / "model.gguf", {});
    settings.run_dir = folder / "run";
    settings.chunk_len = 128;
    settings.tokens_per_step = 256;  // two chunks side by side in a batch
    settings.n_tokens = 1024;
    settings.n_valid_tokens = 256;
    const Cancellation cancellation;
    pipeline::run_data(settings, null_observer(), cancellation);

    write_file_atomic(folder / "train.txt", text_of_training_tokens(folder / "run", 128));
    testing::run_llama_tool("llama-imatrix",
                            {"-m", folder / "copy.gguf", "-f", folder / "train.txt", "-o",
                             folder / "theirs.gguf", "-c", "128", "-t", "2", "--process-output"});
    const quant::Imatrix ours = quant::read_imatrix(folder / "run" / "imatrix.gguf");
    const quant::Imatrix theirs = quant::read_imatrix(folder / "theirs.gguf");
    EXPECT_EQ(theirs.chunk_count, 8u) << "not the same tokens";
    EXPECT_EQ(ours.chunk_count, 8u);
    const size_t n_entries = source.n_expert > 0 ? 9 : 8;  // a router besides
    EXPECT_EQ(theirs.entries.size(), n_entries - (source.tied ? 1 : 0));
    for (const auto& [name, entry] : theirs.entries) {
        const auto found = ours.entries.find(name);
        ASSERT_NE(found, ours.entries.end()) << name;
        EXPECT_EQ(found->second.counts, entry.counts) << name;
        const std::vector<float> a = ours.importance(name).values;
        const std::vector<float> b = theirs.importance(name).values;
        ASSERT_EQ(a.size(), b.size()) << name;
        EXPECT_LT(relative_distance(a, b), tolerance) << name;
    }
    const std::string head = source.tied ? "token_embd.weight" : "output.weight";
    EXPECT_EQ(ours.entries.count(head), 1u) << "the head has no entry";
    EXPECT_EQ(ours.entries.size(), n_entries);
}

constexpr double kTolerance = 1e-3;
/// llama.cpp multiplies BF16 weights with activations rounded to BF16 (8 bits), and these weights
/// are random, so that nothing averages the rounding out. The same weights in F32 take it away.
constexpr double kRoundedActivations = 5e-3;

TEST(ImatrixOfARun, AgreesWithLlamaImatrixOnTheSameTokens) {
    expect_agreement_with_llama_imatrix({.type = GGML_TYPE_F32}, GGML_TYPE_F32, kTolerance);
}

TEST(ImatrixOfARun, CoversTheHeadOfATiedEmbeddingAndAgreesForBF16Weights) {
    expect_agreement_with_llama_imatrix({.type = GGML_TYPE_BF16, .tied = true}, GGML_TYPE_F32,
                                        kTolerance);
}

TEST(ImatrixOfARun, AgreesForBF16WeightsUpToTheRoundingOfLlamaCppsActivations) {
    expect_agreement_with_llama_imatrix({.type = GGML_TYPE_BF16}, GGML_TYPE_BF16,
                                        kRoundedActivations);
}

TEST(ImatrixOfARun, AgreesForEachExpertInActivationCountsAndSums) {
    expect_agreement_with_llama_imatrix({.type = GGML_TYPE_F32, .n_expert = 20}, GGML_TYPE_F32,
                                        kTolerance);
}

TEST(ImatrixOfARun, NamesTheExpertsThatNoTokenReached) {
    const TempFolder folder;
    write_source(folder / "model.gguf", {.n_layer = 2, .n_expert = 20});
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    settings.types = {"Q4_0", "Q8_0"};
    settings.layout = pipeline::LayoutMethod::second_order;
    settings.feedback = true;
    settings.size_bytes = size_between(settings, 0.5);
    RecordingObserver observer;
    quantize(settings, observer);
    const std::string log = observer.log_text(LogLevel::warn);
    EXPECT_NE(log.find("2 experts saw no calibration token"), std::string::npos) << log;
    EXPECT_NE(log.find("blk.0 (19); blk.1 (19)"), std::string::npos) << log;
}

TEST(ImatrixOfARun, AgreesForRowsThatAreNoMultipleOf256) {
    expect_agreement_with_llama_imatrix({.type = GGML_TYPE_F16, .n_embd = 96}, GGML_TYPE_F16,
                                        kTolerance);
}

TEST(ImatrixOfARun, CanBeReplacedByAFileOfLlamaImatrix) {
    const TempFolder folder;
    write_source(folder / "model.gguf");
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    testing::run_llama_tool("llama-imatrix",
                            {"-m", folder / "model.gguf", "-f", folder / "text.txt", "-o",
                             folder / "theirs.gguf", "-c", "128", "-t", "2", "--process-output"});
    settings.imatrix = folder / "theirs.gguf";
    settings.size_bytes = size_between(settings, 0.4);
    quantize(settings);
    testing::run_llama_tool("llama-quantize",
                            {"--imatrix", folder / "theirs.gguf", "--tensor-type-file",
                             folder / "out.gguf.run/recipe.txt", folder / "model.gguf",
                             folder / "requantized.gguf", "Q8_0", "2"});
    expect_same_tensors(folder / "out.gguf", folder / "requantized.gguf");
}

}  // namespace
}  // namespace voodoo::e2e
