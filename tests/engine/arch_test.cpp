// Every architecture that llama.cpp's own test-llama-archs generates: captured, replayed,
// differentiated, and compared with llama.cpp; or refused by the audit with every op that is
// missing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "engine/audit.h"
#include "engine/whole_model.h"

namespace voodoo::engine {
namespace {

namespace fs = std::filesystem;

/// Tolerances, with their reasons.
constexpr double kReplayTolerance =
    1e-4;  // F32; the same kernels in the same order give 0 in practice
constexpr double kExactGeluTolerance =
    5e-3;  // llama.cpp's GELU reads a table indexed by an F16 number (11 bits)
constexpr double kGradientTolerance =
    1e-2;  // beyond the noise of the numeric derivative: curvature and kinks (RELU, CLAMP)
constexpr double kMedianGradientTolerance =
    3e-3;  // steps shrink until the noise is 1e-3: a wrong rule can not hide in the one above
constexpr double kVacuousNoise =
    8e-2;  // the numeric derivative itself is not known better: nothing was checked

constexpr double kClampTolerance =
    5e-2;  // olmo clamps q, k and v to +-1, here a fifth of their deviation: kinks everywhere

/// The dense attention models: no MUL_MAT_ID, SSM, convolution, linear attention or indexer.
constexpr const char* kDense[] = {
    "arcee",          "baichuan",  "bloom",       "chatglm",    "codeshell", "cogvlm",
    "cohere2",        "command-r", "deci",        "dream",      "exaone",    "exaone4",
    "falcon",         "gemma",     "gemma2",      "gemma3",     "glm4",      "gpt2",
    "gptneox",        "granite",   "granite_swa", "granitemoe", "hrm_text",  "hunyuan-dense",
    "hunyuan_vl",     "internlm2", "jais",        "jais2",      "llada",     "llama",
    "maincoder",      "minicpm",   "minicpm3",    "mistral3",   "mpt",       "muse-glimmer",
    "nanbeige",       "nemotron",  "olmo",        "olmo2",      "openelm",   "orion",
    "pangu-embedded", "phi2",      "phi3",        "plamo",      "plamo3",    "pockettts",
    "qwen",           "qwen2",     "qwen2vl",     "qwen3",      "qwen3tts",  "qwen3vl",
    "refact",         "seed_oss",  "smollm3",     "spark2_5",   "stablelm",  "starcoder",
    "starcoder2",     "talkie",    "xverse"};

/// State space models, short convolutions and linear attention, alone or beside attention.
constexpr const char* kRecurrent[] = {"falcon-h1", "granitehybrid", "jamba",      "lfm2",
                                      "mamba",     "mamba2",        "nemotron_h", "nemotron_h_moe",
                                      "plamo2",    "qwen35"};

/// Generated as mixtures of experts, but without an expert layer at their depth.
constexpr const char* kDenseInFact[] = {"ernie4_5-moe.gguf", "paddleocr-moe.gguf",
                                        "refact-moe.gguf"};

/// The mixtures of experts whose other layers are attention.
constexpr const char* kMoe[] = {
    "afmoe",      "arctic",    "bailingmoe",  "bailingmoe2",  "cohere2moe", "dbrx",
    "deepseek",   "deepseek2", "dots1",       "ernie4_5-moe", "exaone-moe", "glm4moe",
    "gpt-oss",    "granite",   "granitemoe",  "grok",         "grovemoe",   "hunyuan-moe",
    "hy_v3",      "laguna",    "llada-moe",   "llama",        "llama4",     "maple",
    "mellum",     "mimo2",     "minicpm",     "minimax-01",   "minimax-m2", "minimax-m3",
    "mistral3",   "mistral4",  "olmoe",       "phimoe",       "qwen2moe",   "qwen3moe",
    "qwen3vlmoe", "rnd1",      "smallthinker"};

/// Mixtures of experts with state space, convolution or linear attention layers.
constexpr const char* kRecurrentMoe[] = {"bailingmoe3", "kimi-k3",   "kimi-linear",
                                         "lfm2moe",     "qwen35moe", "qwen3next"};

/// Has a rule for every op, but a signed square root, sgn(s) sqrt(max(|s|, 1e-6)), in front of two
/// of its tensors: its slope is infinite at 0, and differences do not converge.
constexpr const char* kWithoutCheck = "qwen4exp-moe.gguf";

std::vector<std::string> recurrent_moe_files() {
    std::vector<std::string> files;
    for (const char* name : kRecurrentMoe) files.push_back(std::string(name) + "-moe.gguf");
    return files;
}

std::vector<std::string> moe_files() {
    std::vector<std::string> files;
    for (const char* name : kMoe) files.push_back(std::string(name) + "-moe.gguf");
    return files;
}

std::vector<std::string> dense_files() {
    std::vector<std::string> files(std::begin(kDenseInFact), std::end(kDenseInFact));
    for (const char* name : kDense) files.push_back(std::string(name) + "-dense.gguf");
    return files;
}

std::vector<std::string> recurrent_files() {
    std::vector<std::string> files;
    for (const char* name : kRecurrent) files.push_back(std::string(name) + "-dense.gguf");
    return files;
}

class ArchTest : public testing::Test {
protected:
    static void SetUpTestSuite() {
        folder_ = fs::temp_directory_path() / ("voodoo_archs_" + std::to_string(::getpid()));
        fs::create_directories(folder_);
        // -d 0.3: weights large enough for gradients above the rounding of the logits.
        const std::string command = std::string(VOODOO_LLAMA_BIN) +
                                    "/test-llama-archs -d 0.3 -s 7 -o '" + folder_.string() +
                                    "' > /dev/null 2>&1";
        ASSERT_EQ(std::system(command.c_str()), 0) << command;
    }
    static void TearDownTestSuite() { fs::remove_all(folder_); }

    static fs::path folder_;
};
fs::path ArchTest::folder_;

double median_error(const ModelCheck& check) {
    std::vector<double> errors;
    for (const TensorCheck& tensor : check.tensors) errors.push_back(tensor.difference);
    std::sort(errors.begin(), errors.end());
    return errors.empty() ? INFINITY : errors[errors.size() / 2];
}

void expect_good(const ModelCheck& check) {
    const double tolerance = check.file.starts_with("olmo-") ? kClampTolerance : kGradientTolerance;
    EXPECT_TRUE(check.unsupported.empty()) << describe(check.unsupported);
    EXPECT_LE(check.replay_error, kReplayTolerance);
    EXPECT_LE(check.exact_gelu_error, kExactGeluTolerance);
    EXPECT_FALSE(check.tensors.empty());
    EXPECT_LE(median_error(check), kMedianGradientTolerance);
    for (const TensorCheck& tensor : check.tensors) {
        EXPECT_LE(tensor.error, tolerance)
            << tensor.name << ": analytic " << tensor.analytic << ", numeric " << tensor.numeric;
        EXPECT_LE(tensor.noise, kVacuousNoise) << tensor.name;
    }
}

void expect_all_good(const fs::path& folder, const std::vector<std::string>& files) {
    size_t n_tensors = 0, n_rejected = 0;
    for (const std::string& file : files) {
        SCOPED_TRACE(file);
        const ModelCheck check = check_model(folder / file, {});
        expect_good(check);
        n_tensors += check.tensors.size();
        for (const TensorCheck& tensor : check.tensors)
            n_rejected += static_cast<size_t>(tensor.n_rejected);
        std::printf(
            "%-26s replay %.1e  exact gelu %.1e  %2zu tensors  gradient error median %.1e worst "
            "%.1e\n",
            file.c_str(), check.replay_error, check.exact_gelu_error, check.tensors.size(),
            median_error(check), check.worst_error());
    }
    std::printf("%zu models, %zu tensors, %zu steps rejected that changed the routing\n",
                files.size(), n_tensors, n_rejected);
}

TEST_F(ArchTest, ReplaysAndDifferentiatesEveryDenseAttentionModel) {
    expect_all_good(folder_, dense_files());
}

TEST_F(ArchTest, ReplaysAndDifferentiatesEveryMixtureOfExpertsWithAttention) {
    expect_all_good(folder_, moe_files());
}

TEST_F(ArchTest, ReplaysAndDifferentiatesEveryRecurrentModel) {
    expect_all_good(folder_, recurrent_files());
}

TEST_F(ArchTest, GradientsAreTheSameInManySegmentsAndWithTwoSequences) {
    for (const char* file :
         {"llama-dense.gguf", "gemma2-dense.gguf", "phi2-dense.gguf", "falcon-dense.gguf",
          "qwen3moe-moe.gguf", "gpt-oss-moe.gguf", "deepseek2-moe.gguf"}) {
        SCOPED_TRACE(file);
        CheckOptions options;
        options.memory_bytes = 1;  // as many segments as there are
        expect_good(check_model(folder_ / file, options));
        options.memory_bytes = 0;
        options.n_sequences = 2;
        expect_good(check_model(folder_ / file, options));
    }
}

TEST_F(ArchTest, RecurrentGradientsAreTheSameInManySegmentsAndWithTwoSequences) {
    for (const std::string& file : recurrent_files()) {
        SCOPED_TRACE(file);
        CheckOptions options;
        options.memory_bytes = 1;  // as many segments as there are
        options.n_sequences = 2;
        expect_good(check_model(folder_ / file, options));
    }
}

TEST_F(ArchTest, ReplaysAndDifferentiatesEveryRecurrentMixtureOfExperts) {
    expect_all_good(folder_, recurrent_moe_files());
}

TEST_F(ArchTest, TheAuditNamesTheMissingOpsOfEveryOtherModel) {
    std::set<std::string> supported = {kWithoutCheck};
    for (const auto& list : {dense_files(), moe_files(), recurrent_files(), recurrent_moe_files()})
        supported.insert(list.begin(), list.end());
    int n_refused = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
        const std::string file = entry.path().filename().string();
        if (supported.contains(file)) continue;
        SCOPED_TRACE(file);
        const ModelCheck check = check_model(entry.path(), {.gradients = false});
        EXPECT_FALSE(check.unsupported.empty());
        for (const auto& missing : check.unsupported) {
            EXPECT_FALSE(missing.op.empty());
            EXPECT_GT(missing.count, 0);
        }
        // Nothing was computed.
        EXPECT_EQ(check.replay_error, 0.0);
        EXPECT_TRUE(check.tensors.empty());
        ++n_refused;
    }
    EXPECT_GT(n_refused, 3);
}

}  // namespace
}  // namespace voodoo::engine
