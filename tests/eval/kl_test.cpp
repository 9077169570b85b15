#include "eval/kl.h"

#include "base/files.h"
#include "model/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace voodoo::eval {
namespace {

using voodoo::testing::run_llama_tool;
using voodoo::testing::sample_text;

EvalOptions small_options() {
    EvalOptions options;
    options.n_ctx = 128;
    options.n_batch = 512;
    options.n_threads = 1;
    return options;
}

class KlEvaluation : public ::testing::Test {
protected:
    static void SetUpTestSuite() {
        folder_ = new testing::TempFolder;
        testing::write_tiny_model(teacher());
        run_llama_tool("llama-quantize", {teacher(), student("Q4_K_M"), "Q4_K_M", "1"});
        run_llama_tool("llama-quantize", {teacher(), student("Q8_0"), "Q8_0", "1"});
    }
    static void TearDownTestSuite() {
        delete folder_;
        folder_ = nullptr;
    }
    static std::filesystem::path teacher() { return *folder_ / "teacher.gguf"; }
    static std::filesystem::path student(const std::string& type) {
        return *folder_ / (type + ".gguf");
    }
    std::vector<KlReport> run(const std::vector<std::filesystem::path>& students,
                              const EvalOptions& options) {
        return evaluate_kl(teacher(), students, text_, options, null_observer(), cancellation_);
    }

    static testing::TempFolder* folder_;
    /// 7 chunks of 128 and a rest, so that the last batch of 4 chunks isn't full.
    std::string text_ = sample_text(7 * 128 + 20);
    Cancellation cancellation_;
};

testing::TempFolder* KlEvaluation::folder_ = nullptr;

/// The number after `label` in llama-perplexity's output.
double figure(const std::string& output, const std::string& label, const std::string& after = "") {
    const size_t start = after.empty() ? 0 : output.find(after);
    const size_t at = start == std::string::npos ? start : output.find(label, start);
    if (at == std::string::npos) {
        ADD_FAILURE() << "no " << label << " in\n" << output;
        return std::nan("");
    }
    return std::stod(output.substr(at + label.size()));
}

/// To three digits, and to the last digit that is printed where that says less.
void expect_agreement(double ours, double theirs, double printed_unit, const char* what) {
    EXPECT_NEAR(ours, theirs, std::max(1e-3 * std::abs(theirs), 1.01 * printed_unit)) << what;
}

TEST_F(KlEvaluation, AgreesWithLlamaPerplexity) {
    const std::filesystem::path text = *folder_ / "text.txt";
    const std::filesystem::path logits = *folder_ / "logits.bin";
    write_file_atomic(text, text_);
    const std::vector<std::string> common = {"-f", text, "-c", "128", "-b", "512", "-t", "1"};
    std::vector<std::string> base = {"-m", teacher(), "--kl-divergence-base", logits};
    base.insert(base.end(), common.begin(), common.end());
    run_llama_tool("llama-perplexity", base);
    std::vector<std::string> compare = {"-m", student("Q4_K_M"), "--kl-divergence",
                                        "--kl-divergence-base", logits};
    compare.insert(compare.end(), common.begin(), common.end());
    // "Same top p" is the last figure that it prints.
    const std::string output =
        testing::run_llama_tool_until("llama-perplexity", compare, "Same top p:");

    const KlStatistics s = run({student("Q4_K_M")}, small_options())[0].statistics;
    EXPECT_EQ(s.n_tokens, 7u * 63u);
    EXPECT_GT(s.mean_kl.value, 1e-3) << "a vacuous comparison";
    expect_agreement(s.ppl.value, figure(output, "Mean PPL(Q)                   :"), 1e-6,
                     "PPL(Q)");
    expect_agreement(s.ppl_base.value, figure(output, "Mean PPL(base)                :"), 1e-6,
                     "PPL(base)");
    expect_agreement(s.ln_ppl_ratio.value, figure(output, "Mean ln(PPL(Q)/PPL(base))     :"), 1e-6,
                     "ln ratio");
    expect_agreement(s.ppl_ratio.value, figure(output, "Mean PPL(Q)/PPL(base)         :"), 1e-6,
                     "ratio");
    expect_agreement(100.0 * s.ln_ppl_correlation,
                     figure(output, "Cor(ln(PPL(Q)), ln(PPL(base))):"), 0.01, "cor");
    expect_agreement(s.mean_kl.value, figure(output, "Mean    KLD:"), 1e-6, "mean KL");
    expect_agreement(s.kl.max, figure(output, "Maximum KLD:"), 1e-6, "maximum KL");
    expect_agreement(s.kl.p99_9, figure(output, "99.9%   KLD:"), 1e-6, "99.9 %");
    expect_agreement(s.kl.p99, figure(output, "99.0%   KLD:"), 1e-6, "99 %");
    expect_agreement(s.kl.p95, figure(output, "95.0%   KLD:"), 1e-6, "95 %");
    expect_agreement(s.kl.p90, figure(output, "90.0%   KLD:"), 1e-6, "90 %");
    expect_agreement(s.kl.median, figure(output, "Median  KLD:"), 1e-6, "median");
    expect_agreement(s.kl.min, figure(output, "Minimum KLD:"), 1e-6, "minimum KL");
    expect_agreement(100.0 * s.rms_p_diff.value, figure(output, "RMS \xCE\x94p    :"), 1e-3,
                     "RMS p difference");
    expect_agreement(100.0 * s.mean_p_diff.value, figure(output, "Mean    \xCE\x94p:"), 1e-3,
                     "mean p difference");
    expect_agreement(100.0 * s.same_top.value, figure(output, "Same top p:"), 1e-3, "same top");
    // The errors that it prints behind the values.
    expect_agreement(s.mean_kl.error, figure(output, "\xC2\xB1", "Mean    KLD:"), 1e-6,
                     "error of KL");
    expect_agreement(s.ppl.error, figure(output, "\xC2\xB1", "Mean PPL(Q)  "), 1e-6,
                     "error of PPL");
    expect_agreement(s.ppl_ratio.error, figure(output, "\xC2\xB1", "Mean PPL(Q)/PPL(base)  "), 1e-6,
                     "error of ratio");
    expect_agreement(100.0 * s.same_top.error, figure(output, "\xC2\xB1", "Same top p:"), 1e-3,
                     "error of same top");
}

TEST_F(KlEvaluation, FindsNoDivergenceOfTheTeacherFromItself) {
    const KlReport report = run({teacher()}, small_options())[0];
    EXPECT_NEAR(report.statistics.mean_kl.value, 0.0, 1e-5);
    EXPECT_EQ(report.statistics.same_top.value, 1.0);
    EXPECT_NEAR(report.statistics.ppl_ratio.value, 1.0, 1e-5);
}

TEST_F(KlEvaluation, RanksStudentsInOnePass) {
    EvalOptions options = small_options();
    options.keep_token_kl = true;
    const std::vector<KlReport> reports = run({student("Q4_K_M"), student("Q8_0")}, options);
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_LT(reports[1].statistics.mean_kl.value, reports[0].statistics.mean_kl.value);
    EXPECT_EQ(reports[0].size_bytes, std::filesystem::file_size(student("Q4_K_M")));
    EXPECT_EQ(reports[0].n_chunks, 7);
    EXPECT_EQ(reports[0].chunk_mean_kl.size(), 7u);
    EXPECT_EQ(reports[0].token_kl.size(), 7u * 63u);
    double mean = 0.0;
    for (const double chunk : reports[0].chunk_mean_kl) {
        mean += chunk / 7.0;
    }
    EXPECT_NEAR(mean, reports[0].statistics.mean_kl.value, 1e-12);

    const KlReport alone = run({student("Q8_0")}, options)[0];
    EXPECT_EQ(alone.token_kl, reports[1].token_kl);

    const Estimate difference = paired_difference(reports[1], reports[0]);
    EXPECT_LT(difference.value + 3.0 * difference.error, 0.0);
    KlReport other = reports[0];
    other.chunk_mean_kl.pop_back();
    EXPECT_THROW(paired_difference(reports[0], other), Error);
}

TEST_F(KlEvaluation, HardlyDependsOnHowManyTokensAreDecodedTogether) {
    EvalOptions options = small_options();
    options.max_chunks = 2;
    const double whole = run({student("Q4_K_M")}, options)[0].statistics.mean_kl.value;
    options.n_batch = 48;  // a chunk takes three decodes, the last one smaller
    const double pieces = run({student("Q4_K_M")}, options)[0].statistics.mean_kl.value;
    EXPECT_NEAR(pieces, whole, 0.03 * whole);
}

TEST_F(KlEvaluation, RefusesWhatCannotBeCompared) {
    testing::TinyModelOptions other_vocabulary;
    other_vocabulary.n_vocab_extra = 4;
    testing::write_tiny_model(*folder_ / "other.gguf", other_vocabulary);
    EXPECT_THROW(run({*folder_ / "other.gguf"}, small_options()), Error);
    EXPECT_THROW(run({*folder_ / "none.gguf"}, small_options()), Error);
    EvalOptions options = small_options();
    options.n_ctx = 4096;
    EXPECT_THROW(run({teacher()}, options), Error) << "the text is shorter than a chunk";
    options.n_ctx = 2;
    EXPECT_THROW(run({teacher()}, options), Error);
    cancellation_.request();
    EXPECT_THROW(run({teacher()}, small_options()), Error);
}

TEST_F(KlEvaluation, WritesJsonWithoutNumbersThatJsonCannotHold) {
    KlReport report;
    report.path = "m.gguf";
    report.statistics.mean_kl.value = std::nan("");
    report.statistics.ppl.value = 7.5;
    report.chunk_mean_kl = {0.5, std::nan("")};
    const nlohmann::json json = nlohmann::json::parse(to_json(report).dump());
    EXPECT_TRUE(json["mean_kl"]["value"].is_null());
    EXPECT_EQ(json["ppl"]["value"], 7.5);
    EXPECT_EQ(json["chunk_mean_kl"][0], 0.5);
    EXPECT_TRUE(json["chunk_mean_kl"][1].is_null());
    EXPECT_FALSE(json.contains("token_kl"));
}

}  // namespace
}  // namespace voodoo::eval
