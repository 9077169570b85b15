// The size that was asked for is kept, and what it allows is used; other programs read the file.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "e2e/e2e_run.h"
#include "quant/types.h"
#include "search/gates.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

/// The smallest number of bytes by which a candidate with a smaller error is larger than the chosen
/// type, over all tensors; UINT64_MAX if there is none.
uint64_t smallest_upgrade(const fs::path& run_dir, const std::map<std::string, ggml_type>& types) {
    const search::Gates gates = search::Gates::deserialize(read_file(run_dir / "gates.json"));
    const auto measured = nlohmann::json::parse(read_file(run_dir / "types.stage.json"))["tensors"];
    EXPECT_EQ(measured.size(), gates.tensors().size());
    uint64_t smallest = UINT64_MAX;
    for (size_t t = 0; t < gates.tensors().size(); ++t) {
        // Candidates as (type, bytes, error); those that compete have a gate.
        const std::vector<std::string>& competing = gates.tensors()[t].types;
        std::map<std::string, std::pair<uint64_t, double>> candidates;
        for (const auto& row : measured[t]) {
            const auto type = static_cast<ggml_type>(row[0].get<int>());
            candidates[std::string(quant::type_info(type).name)] = {row[1].get<uint64_t>(),
                                                                    row[2].get<double>()};
        }
        const std::string chosen(quant::type_info(types.at(gates.tensors()[t].name)).name);
        EXPECT_EQ(std::count(competing.begin(), competing.end(), chosen), 1) << chosen;
        const auto [bytes, error] = candidates.at(chosen);
        for (const std::string& type : competing) {
            const auto [other_bytes, other_error] = candidates.at(type);
            if (other_bytes <= bytes || other_error >= error) continue;
            smallest = std::min(smallest, other_bytes - bytes);
        }
    }
    return smallest;
}

void expect_size_is_kept_and_used(const SourceOptions& source) {
    const TempFolder folder;
    write_source(folder / "model.gguf", source);
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    for (const double share : {0.0, 0.12, 0.5, 0.83}) {
        SCOPED_TRACE(share);
        settings.size_bytes = size_between(settings, share);
        const pipeline::QuantizeResult result = quantize(settings);
        const uint64_t size = fs::file_size(folder / "out.gguf");
        EXPECT_EQ(result.file_bytes, size);
        EXPECT_EQ(result.target_bytes, *settings.size_bytes);
        EXPECT_LE(size, *settings.size_bytes);
        const uint64_t unused = *settings.size_bytes - std::min(size, *settings.size_bytes);
        if (static_cast<double>(unused) > 1e-3 * static_cast<double>(*settings.size_bytes)) {
            EXPECT_GT(smallest_upgrade(folder / "out.gguf.run", tensor_types(folder / "out.gguf")),
                      unused)
                << "a better type would have fitted";
        }
    }
}

TEST(QuantizeAtASize, NeverExceedsItAndLeavesNoUsefulUpgradeUnused) {
    expect_size_is_kept_and_used({});
}

TEST(QuantizeAtASize, DoesSoWithRowsThatOnlyBlocksOf32Fit) {
    expect_size_is_kept_and_used({.type = GGML_TYPE_F16, .n_embd = 96, .tied = true});
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
