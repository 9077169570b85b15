// What the choice of types depends on: seed, size, pins, whitelist, memory, the encoding library,
// and the measured comparison with what one would do by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/files.h"
#include "e2e/e2e_run.h"
#include "eval/kl.h"
#include "search/gates.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class ChosenPlan : public ::testing::Test {
protected:
    void make_model(const SourceOptions& options = {}) {
        write_source(folder / "model.gguf", options);
        settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
        settings.size_bytes = size_between(settings, 0.4);
    }
    search::Plan plan_of(const pipeline::Settings& changed) {
        quantize(changed);
        fs::path run = changed.output;
        run += ".run";
        return search::read_plan(run / "plan.json");
    }
    search::Gates gates_of(const fs::path& output) {
        fs::path run = output;
        run += ".run";
        return search::Gates::deserialize(read_file(run / "gates.json"));
    }

    const TempFolder folder;
    pipeline::Settings settings;
};

TEST_F(ChosenPlan, IsTheSameForTheSameSeedAndThreads) {
    make_model();
    settings.text.clear();
    const search::Plan first = plan_of(settings);
    pipeline::Settings again = settings;
    again.output = folder / "again.gguf";
    EXPECT_EQ(plan_of(again), first);
    EXPECT_EQ(read_file(again.output), read_file(settings.output));
    EXPECT_EQ(read_file(folder / "again.gguf.run/gates.json"),
              read_file(folder / "out.gguf.run/gates.json"));

    again.seed = 2;  // other text, other order
    again.output = folder / "seed.gguf";
    plan_of(again);
    EXPECT_NE(read_file(folder / "seed.gguf.run/tokens.i32"),
              read_file(folder / "out.gguf.run/tokens.i32"));
}

TEST_F(ChosenPlan, DiffersForAnotherSize) {
    make_model();
    const search::Plan first = plan_of(settings);
    pipeline::Settings larger = settings;
    larger.size_bytes = size_between(settings, 0.6);
    larger.output = folder / "larger.gguf";
    const search::Plan second = plan_of(larger);
    EXPECT_NE(first.plan_hash(), second.plan_hash());
    EXPECT_GT(second.file_bytes, first.file_bytes);
}

TEST_F(ChosenPlan, IsLearnedFromAGradientOfEveryTensor) {
    make_model({.n_layer = 2});
    quantize(settings);
    const search::Gates gates = gates_of(settings.output);
    EXPECT_EQ(gates.history().size(), 4u);
    double moved = 0.0;
    for (const search::GateRecord& record : gates.history()) {
        EXPECT_TRUE(record.applied);
        EXPECT_TRUE(std::isfinite(record.loss.kl) && record.loss.kl > 0.0) << record.loss.kl;
        moved = std::max(moved, record.grad_norm);
    }
    EXPECT_GT(moved, 0.0);
    const auto scores = gates.scores(search::GateScore::first_order);
    for (size_t t = 0; t < scores.size(); ++t) {
        if (scores[t].size() < 2) continue;
        const auto [low, high] = std::minmax_element(scores[t].begin(), scores[t].end());
        EXPECT_GT(*high - *low, 0.0) << gates.tensors()[t].name;
    }
}

TEST_F(ChosenPlan, NeedsNoMemoryForTheWholeModel) {
    make_model({.n_layer = 3});
    const search::Plan whole = plan_of(settings);
    const search::Gates expected = gates_of(settings.output);
    pipeline::Settings small = settings;
    small.output = folder / "small.gguf";
    small.memory_bytes = 1;
    const search::Plan grouped = plan_of(small);
    const search::Gates gates = gates_of(small.output);
    for (size_t t = 0; t < gates.tensors().size(); ++t) {
        for (size_t k = 0; k < gates.gates(t).size(); ++k) {
            EXPECT_NEAR(gates.gates(t)[k], expected.gates(t)[k], 1e-3)
                << gates.tensors()[t].name << " " << gates.tensors()[t].types[k];
        }
    }
    EXPECT_EQ(grouped.file_bytes, whole.file_bytes);
}

TEST_F(ChosenPlan, HonoursPinsKeptTensorsAndTheWhitelist) {
    make_model();
    settings.types = {"q3_k", "Q5_0", "Q8_0"};
    settings.keep = {"blk.0.attn_k.weight"};
    settings.tensor_types = {{"output.weight", "Q6_K"}, {"blk.0.ffn_up.weight", "bf16"}};
    settings.size_bytes = size_between(settings, 0.3);
    // A pin holds in every plan that may win the comparison.
    for (const bool compare : {false, true}) {
        SCOPED_TRACE(compare);
        settings.compare = compare;
        quantize(settings);
        EXPECT_LE(fs::file_size(settings.output), *settings.size_bytes);
        const std::set<ggml_type> allowed = {GGML_TYPE_Q3_K, GGML_TYPE_Q5_0, GGML_TYPE_Q8_0};
        for (const auto& [name, type] : tensor_types(settings.output)) {
            if (name == "output.weight") {
                EXPECT_EQ(type, GGML_TYPE_Q6_K);
            } else if (name == "blk.0.ffn_up.weight" || name == "blk.0.attn_k.weight") {
                EXPECT_EQ(type, GGML_TYPE_BF16) << name;
            } else if (name.find("norm") == std::string::npos) {
                EXPECT_EQ(allowed.count(type), 1u) << name << " is " << ggml_type_name(type);
            }
        }
    }
}

TEST_F(ChosenPlan, NeverGivesUpAPinToAPreset) {
    make_model();
    settings.compare = true;
    settings.types.clear();
    settings.max_encode_ns = 130;
    settings.tensor_types = {{"output.weight", "Q2_K"}, {"blk.0.attn_q.weight", "Q8_0"}};
    settings.gates.lambda_kl = 1e-9;  // the gates learn nothing but the size, and lose
    settings.gates.ce_weight = 0.0;
    settings.size_bytes = size_between(settings, 0.45);
    const pipeline::QuantizeResult result = quantize(settings);
    const auto types = tensor_types(settings.output);
    EXPECT_EQ(types.at("output.weight"), GGML_TYPE_Q2_K) << result.chosen;
    EXPECT_EQ(types.at("blk.0.attn_q.weight"), GGML_TYPE_Q8_0) << result.chosen;
}

TEST_F(ChosenPlan, KeepsTheSourceTypeWhereTheWhitelistFitsNoRow) {
    for (const ggml_type source : {GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
        SCOPED_TRACE(ggml_type_name(source));
        // Rows of 128, and of 256 in ffn_down.
        make_model({.type = source, .n_embd = 128});
        settings.types = {"Q4_K", "Q6_K"};
        settings.size_bytes = size_between(settings, 0.7);
        quantize(settings);
        const auto types = tensor_types(settings.output);
        EXPECT_EQ(types.at("blk.0.attn_q.weight"), source);
        EXPECT_TRUE(types.at("blk.0.ffn_down.weight") == GGML_TYPE_Q4_K ||
                    types.at("blk.0.ffn_down.weight") == GGML_TYPE_Q6_K);
        fs::remove_all(folder / "out.gguf.run");
    }
}

TEST_F(ChosenPlan, ComesWithTheEncodingLibraryThatMadeTheBytes) {
    make_model();
    const search::Plan linked = plan_of(settings);
    pipeline::Settings opened = settings;
    opened.output = folder / "opened.gguf";
    opened.ggml_lib = VOODOO_E2E_GGML_BASE;
    const search::Plan other = plan_of(opened);
    EXPECT_EQ(read_file(opened.output), read_file(settings.output));
    // Links are resolved in what is recorded.
    const std::string library = fs::canonical(VOODOO_E2E_GGML_BASE).string();
    EXPECT_NE(other.encoder.find(library), std::string::npos) << other.encoder;
    EXPECT_FALSE(linked.encoder.empty());
    EXPECT_NE(linked.encoder, other.encoder);
}

class MeasuredComparison : public ChosenPlan {
protected:
    void expect_smallest_is_chosen(const pipeline::QuantizeResult& result) {
        ASSERT_FALSE(result.measured.empty());
        const auto best =
            std::min_element(result.measured.begin(), result.measured.end(),
                             [](const auto& a, const auto& b) { return a.mean_kl < b.mean_kl; });
        EXPECT_EQ(result.chosen, best->name);
        EXPECT_EQ(result.file_bytes, best->file_bytes);
        for (const auto& measured : result.measured) {
            EXPECT_LE(measured.file_bytes, *settings.size_bytes) << measured.name;
            EXPECT_GT(measured.mean_kl, 0.0) << measured.name;
        }
    }
    static bool has(const pipeline::QuantizeResult& result, const std::string& prefix) {
        return std::any_of(result.measured.begin(), result.measured.end(),
                           [&](const auto& m) { return m.name.starts_with(prefix); });
    }
};

TEST_F(MeasuredComparison, HasAPresetAndAMixOfTwoTypesAndExportsTheSmallestDivergence) {
    make_model();
    settings.compare = true;
    settings.types.clear();
    settings.max_encode_ns = 130;
    settings.size_bytes = size_between(settings, 0.3);
    const pipeline::QuantizeResult result = quantize(settings);
    EXPECT_TRUE(has(result, "gates"));
    EXPECT_TRUE(has(result, "preset "));
    EXPECT_TRUE(has(result, "mix "));
    expect_smallest_is_chosen(result);
}

TEST_F(MeasuredComparison, ExportsTheBetterPlanIfTheGatesLose) {
    make_model();
    settings.compare = true;
    settings.types.clear();
    settings.max_encode_ns = 130;
    // Steps far too large, by the cross-entropy of a text that the model can't predict: what they
    // learn is no guide to the divergence.
    settings.gates.lambda_kl = 0.0;
    settings.gates.lr = 8.0;
    int n_lost = 0;
    for (const double share : {0.2, 0.3, 0.45, 0.6}) {
        SCOPED_TRACE(share);
        settings.size_bytes = size_between(settings, share);
        RecordingObserver observer;
        const pipeline::QuantizeResult result = quantize(settings, observer);
        expect_smallest_is_chosen(result);
        const gguf::File out = gguf::File::open(settings.output);
        EXPECT_EQ(out.find_string("voodoo.method").value_or("").substr(0, 4),
                  result.chosen.substr(0, 4));
        if (result.chosen.starts_with("gates")) continue;
        ++n_lost;
        EXPECT_NE(observer.log_text(LogLevel::warn).find(result.chosen), std::string::npos)
            << "the log does not say so: " << observer.log_text(LogLevel::warn);
    }
    EXPECT_GE(n_lost, 1) << "gates that learned nothing won at every size: a vacuous test";
}

/// The number after `label` in a tool's output.
double figure(const std::string& output, const std::string& label) {
    const size_t at = output.find(label);
    if (at == std::string::npos) {
        ADD_FAILURE() << "no " << label << " in\n" << output;
        return std::nan("");
    }
    return std::stod(output.substr(at + label.size()));
}

TEST_F(MeasuredComparison, OfTheOutputAgreesWithLlamaPerplexity) {
    make_model();
    quantize(settings);
    const std::string text = testing::sample_text(6 * 128, 21);
    write_file_atomic(folder / "eval.txt", text);
    const std::vector<std::string> common = {
        "-f", folder / "eval.txt", "-c", "128", "--kl-divergence-base", folder / "logits", "-t",
        "2"};
    std::vector<std::string> base = {"-m", settings.model};
    base.insert(base.end(), common.begin(), common.end());
    testing::run_llama_tool("llama-perplexity", base);
    std::vector<std::string> compare = {"-m", settings.output, "--kl-divergence"};
    compare.insert(compare.end(), common.begin(), common.end());
    const double theirs = figure(
        testing::run_llama_tool_until("llama-perplexity", compare, "Mean    KLD:"), "Mean    KLD:");

    eval::EvalOptions options;
    options.n_ctx = 128;
    options.n_threads = 2;
    const Cancellation cancellation;
    const auto reports = eval::evaluate_kl(settings.model, {settings.output}, text, options,
                                           null_observer(), cancellation);
    const double ours = reports.at(0).statistics.mean_kl.value;
    EXPECT_GT(theirs, 1e-3) << "a vacuous comparison";
    EXPECT_NEAR(ours, theirs, std::max(1e-3 * theirs, 1.01e-6));
}

TEST_F(MeasuredComparison, IsCloseToWhatEvalMeasuresOnTheSameTokens) {
    make_model();
    settings.compare = true;
    settings.chunk_len = 128;
    settings.n_valid_tokens = 1024;
    write_file_atomic(folder / "text.txt", testing::sample_text(10 * 1024));
    const pipeline::QuantizeResult result = quantize(settings);
    const auto chosen =
        std::find_if(result.measured.begin(), result.measured.end(),
                     [&](const auto& measured) { return measured.name == result.chosen; });
    ASSERT_NE(chosen, result.measured.end());
    eval::EvalOptions options;
    options.n_ctx = 128;
    options.n_threads = 2;
    const Cancellation cancellation;
    const auto reports =
        eval::evaluate_kl(settings.model, {settings.output}, read_file(folder / "text.txt"),
                          options, null_observer(), cancellation);
    const double measured = reports.at(0).statistics.mean_kl.value;
    // Other tokens of the same text, and the kernels' 8-bit activations.
    EXPECT_NEAR(chosen->mean_kl / measured, 1.0, 0.25) << chosen->mean_kl << " " << measured;
}

}  // namespace
}  // namespace voodoo::e2e
