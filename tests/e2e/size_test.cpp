// The size that was asked for is kept, and what it allows is used; other programs read the file.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "e2e/e2e_run.h"
#include "quant/types.h"
#include "search/gates.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

/// What competed for one tensor: file bytes and what is minimised, by type.
using Competition = std::map<std::string, std::pair<uint64_t, double>>;

/// Each tensor's candidates that were on offer, by tensor name. The plain gates fill the budget by
/// the error of the candidates that have a gate, the second-order layout by its costs.
std::map<std::string, Competition> competitions(const fs::path& run_dir,
                                                pipeline::LayoutMethod layout) {
    const search::Plan plan = search::read_plan((run_dir / "plan.json").string());
    const auto measured = nlohmann::json::parse(read_file(run_dir / "types.stage.json"))["tensors"];
    EXPECT_EQ(measured.size(), plan.tensors.size());
    std::vector<Competition> all;
    for (const auto& tensor : measured) {
        all.emplace_back();
        for (const auto& row : tensor) {
            const auto type = static_cast<ggml_type>(row[0].get<int>());
            all.back()[std::string(quant::type_info(type).name)] = {row[1].get<uint64_t>(),
                                                                    row[2].get<double>()};
        }
    }
    std::map<std::string, Competition> on_offer;
    if (layout == pipeline::LayoutMethod::gates_plain) {
        const search::Gates gates = search::Gates::deserialize(read_file(run_dir / "gates.json"));
        for (size_t t = 0; t < plan.tensors.size(); ++t)
            for (const std::string& type : gates.tensors()[t].types)
                on_offer[gates.tensors()[t].name][type] = all[t].at(type);
        return on_offer;
    }
    const auto score = nlohmann::json::parse(read_file(run_dir / "score.stage.json"));
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
        for (size_t k = 0; k < score["types"][t].size(); ++k) {
            const auto type = score["types"][t][k].get<std::string>();
            on_offer[plan.tensors[t].tensor][type] = {all[t].at(type).first,
                                                      score["cost"][t][k].get<double>()};
        }
    }
    return on_offer;
}

/// The smallest number of bytes by which a better candidate is larger than the chosen type, over
/// all tensors; UINT64_MAX if there is none.
uint64_t smallest_upgrade(const std::map<std::string, Competition>& on_offer,
                          const std::map<std::string, ggml_type>& types) {
    uint64_t smallest = UINT64_MAX;
    for (const auto& [tensor, candidates] : on_offer) {
        const std::string chosen(quant::type_info(types.at(tensor)).name);
        EXPECT_EQ(candidates.count(chosen), 1u) << tensor << " " << chosen;
        const auto [bytes, value] = candidates.at(chosen);
        for (const auto& [type, other] : candidates) {
            if (other.first <= bytes || other.second >= value) continue;
            smallest = std::min(smallest, other.first - bytes);
        }
    }
    return smallest;
}

void expect_size_is_kept_and_used(const SourceOptions& source, pipeline::LayoutMethod layout) {
    const TempFolder folder;
    write_source(folder / "model.gguf", source);
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    settings.layout = layout;
    int n_unused = 0;
    for (const double share : {0.0, 0.12, 0.5, 0.83}) {
        SCOPED_TRACE(share);
        settings.size_bytes = size_between(settings, share);
        const pipeline::QuantizeResult result = quantize(settings);
        const uint64_t size = fs::file_size(folder / "out.gguf");
        EXPECT_EQ(result.file_bytes, size);
        EXPECT_EQ(result.target_bytes, *settings.size_bytes);
        EXPECT_LE(size, *settings.size_bytes);
        const uint64_t unused = *settings.size_bytes - std::min(size, *settings.size_bytes);
        if (static_cast<double>(unused) <= 1e-3 * static_cast<double>(*settings.size_bytes))
            continue;
        ++n_unused;
        EXPECT_GT(smallest_upgrade(competitions(folder / "out.gguf.run", layout),
                                   tensor_types(folder / "out.gguf")),
                  unused)
            << "a better type would have fitted";
    }
    // Few and small tensors: some size can't be used up.
    EXPECT_GT(n_unused, 0) << "nothing was checked";
}

TEST(QuantizeAtASize, NeverExceedsItAndLeavesNoUsefulUpgradeUnused) {
    expect_size_is_kept_and_used({}, pipeline::LayoutMethod::gates_plain);
    expect_size_is_kept_and_used({}, pipeline::LayoutMethod::second_order);
}

TEST(QuantizeAtASize, DoesSoWithRowsThatOnlyBlocksOf32Fit) {
    const SourceOptions narrow{.type = GGML_TYPE_F16, .n_embd = 96, .tied = true};
    expect_size_is_kept_and_used(narrow, pipeline::LayoutMethod::gates_plain);
    expect_size_is_kept_and_used(narrow, pipeline::LayoutMethod::second_order);
}

TEST(QuantizeAtASize, TakesBitsPerWeightOfTheWholeFile) {
    const TempFolder folder;
    write_source(folder / "model.gguf");
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    settings.bpw = 5.0;
    const pipeline::QuantizeResult result = quantize(settings);
    EXPECT_LE(result.bits_per_weight, 5.0);
    EXPECT_GT(result.bits_per_weight, 4.0);
    const uint64_t n_weights = pipeline::inspect(settings).n_weights;
    EXPECT_EQ(result.target_bytes, n_weights * 5 / 8);
}

TEST(QuantizeAtASize, TakesThatOfAPresetWithoutMakingIt) {
    const TempFolder folder;
    write_source(folder / "model.gguf");
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    settings.preset = "q4_k_s";
    const pipeline::QuantizeResult result = quantize(settings);
    testing::run_llama_tool("llama-quantize", {settings.model, folder / "stock.gguf", "Q4_K_S"});
    EXPECT_EQ(result.target_bytes, fs::file_size(folder / "stock.gguf"));
    EXPECT_LE(fs::file_size(settings.output), result.target_bytes);
    settings.preset = "Q4_K_XXL";
    try {
        quantize(settings);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
        EXPECT_NE(std::string(error.what()).find("Q4_K_M"), std::string::npos) << error.what();
    }
}

TEST(QuantizeAtASize, TakesThatOfAnotherFileWithAllItsShards) {
    const TempFolder folder;
    write_source(folder / "model.gguf");
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "first.gguf");
    settings.size_bytes = size_between(settings, 0.5);
    settings.split_max_bytes = 200'000;
    const pipeline::QuantizeResult first = quantize(settings);
    ASSERT_GT(first.files.size(), 1u);
    pipeline::Settings again = quick_settings(folder / "model.gguf", folder / "second.gguf");
    again.like = first.files.front();
    const pipeline::QuantizeResult second = quantize(again);
    EXPECT_EQ(second.target_bytes, first.file_bytes);
    EXPECT_LE(second.file_bytes, first.file_bytes);
    again.like = folder / "text.txt";
    EXPECT_THROW(quantize(again), Error);
}

TEST(QuantizedFile, RunsInStockLlamaCpp) {
    const TempFolder folder;
    write_file_atomic(folder / "eval.txt", testing::sample_text(600, 9));
    int n = 0;
    for (const SourceOptions& source :
         {SourceOptions{}, SourceOptions{.type = GGML_TYPE_Q8_0, .n_embd = 160, .tied = true}}) {
        const fs::path model = folder / (std::to_string(n) + ".gguf");
        const fs::path out = folder / (std::to_string(n++) + "-out.gguf");
        write_source(model, source);
        pipeline::Settings settings = quick_settings(model, out);
        settings.size_bytes = size_between(settings, 0.3);
        quantize(settings);
        const std::string perplexity = testing::run_llama_tool_until(
            "llama-perplexity", {"-m", out, "-f", folder / "eval.txt", "-c", "128", "-t", "2"},
            "Final estimate: PPL =");
        EXPECT_NE(perplexity.find("Final estimate: PPL ="), std::string::npos) << perplexity;
        const std::string bench = testing::run_llama_tool(
            "llama-bench", {"-m", out, "-p", "16", "-n", "4", "-r", "1", "-t", "2"});
        EXPECT_NE(bench.find("tg4"), std::string::npos) << bench;
    }
}

}  // namespace
}  // namespace voodoo::e2e
