// What the training engine costs on this machine, on a real model:
//   engine_bench [MODEL.gguf = models/tiny-llama.gguf] [tokens per step = 2048] [chunk length =
//   512] [memory bytes = 0] [threads = 0]
// Prints: capture and compile time; the step without decoding as a share of the machine's own
// matmul rate; decode + mix and contract per weight and type; memory of the process beside the
// model's size.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/random.h"
#include "base/units.h"
#include "device/backend.h"
#include "device/memory.h"
#include "engine/executor.h"
#include "pipeline/workbench.h"
#include "quant/candidates.h"
#include "quant/codec.h"
#include "step_time.h"

namespace {

using namespace voodoo;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void bench_step(pipeline::Workbench& bench, engine::Executor& executor,
                std::span<const int32_t> tokens, int n_sequences, double gflops) {
    double matmul_weights = 0;
    for (const engine::WeightInfo& w : executor.weights()) {
        if (w.ne[1] > 1 && w.name != "token_embd.weight")
            matmul_weights += static_cast<double>(w.n_elements());
    }
    const double head = static_cast<double>(executor.n_hidden() * executor.n_vocab());
    if (executor.find_weight("output.weight") < 0) matmul_weights += head;
    const double best = bench::step_seconds(bench, executor, tokens, n_sequences);
    const double flops = 6.0 * matmul_weights * static_cast<double>(tokens.size());
    fmt::print(
        "step: {:.2f} s for {} tokens without decoding, {:.1f} GFLOP/s of 6 N T, {:.0f} % of the "
        "matmul rate\n",
        best, tokens.size(), flops / best / 1e9, 100 * flops / best / 1e9 / gflops);
}

void bench_kernels(ThreadPool& pool) {
    constexpr int64_t kRow = 4096, kRows = 1024;
    std::vector<float> source(kRow * kRows), mixed(kRow * kRows), transposed(kRow * kRows),
        importance(kRow, 1.0F);
    Random random(1, "bench");
    for (float& x : source) x = static_cast<float>(random.normal());
    const quant::MatrixShape shape{kRow, kRows, 1};
    const quant::Encoder encoder;
    const double scale = 1e9 * pool.size() / static_cast<double>(shape.n_elements());
    fmt::print("{:8} {:>10} {:>14}   (ns per weight and core)\n", "type", "mix", "contract");
    for (const quant::TypeInfo& info : quant::all_types()) {
        if (!info.candidate || info.encode_ns > 400) continue;
        std::vector<std::byte> bytes(quant::size_bytes(info.type, kRow, kRows));
        if (!quant::encode(encoder, info.type, source.data(), shape, importance.data(),
                           bytes.data(), pool)
                 .usable)
            continue;
        const auto view = quant::make_view(info.type, bytes.data(), kRow);
        const float one = 1.0F;
        double best_mix = 1e30, best_contract = 1e30, c = 0;
        for (int run = 0; run < 3; ++run) {
            auto start = Clock::now();
            quant::mix({&view, 1}, {&one, 1}, shape,
                       quant::MixOutput{mixed.data(), transposed.data()}, pool);
            best_mix = std::min(best_mix, seconds_since(start));
            start = Clock::now();
            quant::contract({&view, 1}, source.data(), shape, &c, nullptr, pool);
            best_contract = std::min(best_contract, seconds_since(start));
        }
        fmt::print("{:8} {:>10.2f} {:>14.2f}\n", info.name, best_mix * scale,
                   best_contract * scale);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const auto number = [&](int i, long fallback) {
        return argc > i ? std::atol(argv[i]) : fallback;
    };
    pipeline::Settings settings;
    settings.model = argc > 1 ? argv[1] : "models/tiny-llama.gguf";
    settings.chunk_len = static_cast<int32_t>(number(3, argc > 1 ? 512 : 256));
    settings.n_threads = static_cast<int>(number(5, 0));
    const int n_sequences = static_cast<int>(number(2, 2048) / settings.chunk_len);
    pipeline::Workbench bench(settings, null_observer());
    const device::Backend backend = device::Backend::cpu(settings.n_threads);
    const double f32 = device::matmul_gflops(backend, GGML_TYPE_F32);
    const double bf16 = device::matmul_gflops(backend, GGML_TYPE_BF16);
    fmt::print("matmul 1024 x 1024 x 512 on {} threads: F32 {:.0f} GFLOP/s, BF16 {:.0f} GFLOP/s\n",
               backend.n_threads(), f32, bf16);

    auto start = Clock::now();
    graph::Graph graph = bench.capture(n_sequences, settings.chunk_len, true);
    fmt::print("capture and audit: {:.3f} s, {} values\n", seconds_since(start), graph.size());
    start = Clock::now();
    engine::ExecutorOptions options;
    options.n_threads = settings.n_threads;
    options.memory_bytes = static_cast<uint64_t>(number(4, 0));
    options.wants_gradient = [&](const engine::WeightInfo& w) {
        return bench.find_tensor(w.name) >= 0;
    };
    engine::Executor executor(std::move(graph), options);
    fmt::print("compile: {:.3f} s, {} segments\n", seconds_since(start), executor.n_segments());

    std::vector<int32_t> tokens(static_cast<size_t>(n_sequences) *
                                static_cast<size_t>(settings.chunk_len));
    Random random(2, "tokens");
    for (int32_t& token : tokens)
        token = static_cast<int32_t>(random.below(static_cast<uint64_t>(executor.n_vocab())));
    bench_step(bench, executor, tokens, n_sequences, bf16);
    const engine::ExecutorMemory memory = executor.memory();
    const device::ProcessMemory process = device::process_memory();
    fmt::print(
        "memory: model {}; engine weights {}, activations {}, constants {}, borders {}; process "
        "peak {}, of it now anonymous {} and evictable {}\n",
        format_size(bench.file().total_size_bytes()), format_size(memory.weights),
        format_size(memory.activations), format_size(memory.constants), format_size(memory.borders),
        format_size(process.peak_resident), format_size(process.anonymous),
        format_size(process.file_pages));
    bench_kernels(bench.pool());
    return 0;
}
