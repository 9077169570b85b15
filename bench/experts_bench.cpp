// What a mixture of experts costs beside a dense model that does as much for each token:
//   experts_bench [experts = 32] [used = 4] [width = 512] [tokens = 2048] [threads = 0]
// Makes two random models, whose feed-forward layers have the same active weights, and prints the
// time of a step (forward and backward, without decoding) of each and their ratio.
#include <fmt/format.h>

#include <cstdlib>

#include "base/random.h"
#include "base/units.h"
#include "model/tiny_model.h"
#include "step_time.h"

namespace {

using namespace voodoo;

/// Seconds of a step; prints them and what the engine holds.
double time_step(const std::filesystem::path& model, int n_tokens, int n_threads) {
    constexpr int kChunk = 256;
    pipeline::Settings settings;
    settings.model = model;
    settings.chunk_len = kChunk;
    settings.n_threads = n_threads;
    pipeline::Workbench workbench(settings, null_observer());
    engine::ExecutorOptions options;
    options.n_threads = n_threads;
    options.wants_gradient = [&](const engine::WeightInfo& w) {
        return workbench.find_tensor(w.name) >= 0;
    };
    const int n_sequences = n_tokens / kChunk;
    engine::Executor executor(workbench.capture(n_sequences, kChunk, true), options);
    std::vector<int32_t> tokens(static_cast<size_t>(n_sequences) * kChunk);
    Random random(2, "tokens");
    for (int32_t& token : tokens)
        token = static_cast<int32_t>(random.below(static_cast<uint64_t>(executor.n_vocab())));
    const double seconds = bench::step_seconds(workbench, executor, tokens, n_sequences);
    const engine::ExecutorMemory memory = executor.memory();
    fmt::print("  {:.3f} s, weights {}, activations {}\n", seconds, format_size(memory.weights),
               format_size(memory.activations));
    return seconds;
}

}  // namespace

int main(int argc, char** argv) {
    const auto number = [&](int i, int fallback) {
        return argc > i ? std::atoi(argv[i]) : fallback;
    };
    testing::TinyModelOptions experts;
    experts.n_expert = number(1, 32);
    experts.n_expert_used = number(2, 4);
    experts.n_embd = number(3, 512);
    experts.n_ff = experts.n_embd;
    testing::TinyModelOptions dense = experts;
    dense.n_expert = 0;
    dense.n_ff = experts.n_ff * experts.n_expert_used;
    const int n_tokens = number(4, 2048), n_threads = number(5, 0);

    const testing::TempFolder folder;
    testing::write_tiny_model(folder / "experts.gguf", experts);
    testing::write_tiny_model(folder / "dense.gguf", dense);
    fmt::print("{} layers, width {}, {} tokens\n", dense.n_layer, dense.n_embd, n_tokens);
    fmt::print("dense, feed-forward of {}:\n", dense.n_ff);
    const double one = time_step(folder / "dense.gguf", n_tokens, n_threads);
    fmt::print("{} of {} experts of {}:\n", experts.n_expert_used, experts.n_expert, experts.n_ff);
    const double many = time_step(folder / "experts.gguf", n_tokens, n_threads);
    fmt::print("ratio {:.2f}\n", many / one);
    return 0;
}
