// The size that was asked for is kept, and what it allows is used; other programs read the file.
#include <gtest/gtest.h>

#include "base/files.h"
#include "e2e/e2e_run.h"
#include "search/gates.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

/// The smallest number of bytes by which a type that the gates prefer to the chosen one is larger.
uint64_t smallest_upgrade(const fs::path& run_dir, const std::map<std::string, ggml_type>& types) {
    const search::Gates gates = search::Gates::deserialize(read_file(run_dir / "gates.json"));
    const auto scores = gates.scores(search::GateScore::gates);
    uint64_t smallest = UINT64_MAX;
    for (size_t t = 0; t < gates.tensors().size(); ++t) {
        const search::GateTensor& tensor = gates.tensors()[t];
        const std::string chosen = ggml_type_name(types.at(tensor.name));
        size_t at = tensor.types.size();
        for (size_t k = 0; k < tensor.types.size(); ++k) {
            std::string lower = tensor.types[k];
            std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
            std::string wanted = chosen;
            std::transform(wanted.begin(), wanted.end(), wanted.begin(), ::tolower);
            if (lower == wanted) at = k;
        }
        EXPECT_LT(at, tensor.types.size()) << tensor.name << " is " << chosen;
        if (at == tensor.types.size()) continue;
        for (size_t k = 0; k < tensor.types.size(); ++k) {
            if (tensor.bytes[k] <= tensor.bytes[at] || scores[t][k] >= scores[t][at]) continue;
            smallest =
                std::min(smallest, static_cast<uint64_t>(tensor.bytes[k] - tensor.bytes[at]));
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
                << "an upgrade that the gates prefer would have fitted";
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
        const std::string perplexity = testing::run_llama_tool(
            "llama-perplexity", {"-m", out, "-f", folder / "eval.txt", "-c", "128", "-t", "2"});
        EXPECT_NE(perplexity.find("Final estimate: PPL ="), std::string::npos) << perplexity;
        const std::string bench = testing::run_llama_tool(
            "llama-bench", {"-m", out, "-p", "16", "-n", "4", "-r", "1", "-t", "2"});
        EXPECT_NE(bench.find("tg4"), std::string::npos) << bench;
    }
}

}  // namespace
}  // namespace voodoo::e2e
