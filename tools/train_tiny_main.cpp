// voodoo-train-tiny: makes a small trained model from text files, for demos, tests and benchmarks.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "tools/train_tiny.h"

namespace {

using namespace voodoo;

constexpr int kHoldOut = 10;           // every tenth block is never trained on
constexpr double kSuccessShare = 0.7;  // of the unigram entropy
constexpr size_t kMaxValidBytes = 64 << 10;
constexpr size_t kMaxTrainBytes = 200 << 10;

struct Arguments {
    std::vector<std::filesystem::path> text;
    std::filesystem::path output;
    std::filesystem::path train_out;
    std::filesystem::path valid_out;
    tools::TrainOptions train;
};

int run(Arguments& arguments) {
    const auto files = tools::list_text_files(arguments.text);
    const std::string text = tools::read_texts(files);
    tools::TextSplit split = tools::split_text(text, kHoldOut);
    split.valid = tools::excerpt(split.valid, kMaxValidBytes);
    const std::string hash = sha256_hex(text);
    fmt::print("{} files, {} bytes, sha256 {}\n", files.size(), text.size(), hash);
    if (!arguments.valid_out.empty()) {
        write_file_atomic(arguments.valid_out, split.valid);
    }
    if (!arguments.train_out.empty()) {
        write_file_atomic(arguments.train_out, tools::excerpt(split.train, kMaxTrainBytes));
    }
    arguments.train.extra = {
        {"general.description",
         gguf::Value::text("Small byte-level model trained on the sources of Voodoo, for its demo "
                           "and tests")},
        {"general.license", gguf::Value::text("mit")},
        {"voodoo.train.steps", gguf::Value::scalar(static_cast<uint32_t>(arguments.train.n_steps))},
        {"voodoo.train.seed", gguf::Value::scalar(arguments.train.seed)},
        {"voodoo.train.text_sha256", gguf::Value::text(hash)},
    };
    const tools::TrainResult result =
        tools::train_tiny(arguments.output, split, arguments.train, [](const std::string& line) {
            fmt::print("{}\n", line);
            std::fflush(stdout);
        });
    fmt::print(
        "{}: validation loss {:.4f} +- {:.4f} nats per token (perplexity {:.4f}), {:.2f} of "
        "the unigram entropy {:.4f}\n",
        arguments.output.string(), result.valid_loss, result.valid_loss_error,
        std::exp(result.valid_loss), result.valid_loss / result.unigram_entropy,
        result.unigram_entropy);
    if (!(result.valid_loss < kSuccessShare * result.unigram_entropy)) {
        fmt::print(stderr, "failed: the loss is not below {} of the unigram entropy\n",
                   kSuccessShare);
        return 1;
    }
    return 0;
}

void add_options(CLI::App& app, Arguments& arguments) {
    app.add_option("--text", arguments.text, "Files, and folders of sources and documents")
        ->required();
    app.add_option("-o,--output", arguments.output, "GGUF to write")->required();
    app.add_option("--steps", arguments.train.n_steps, "Optimizer steps of 1024 tokens")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--lr", arguments.train.peak_lr, "Highest learning rate")->capture_default_str();
    app.add_option("--layers", arguments.train.shape.n_layer, "Blocks")->capture_default_str();
    app.add_option("--ff", arguments.train.shape.n_ff,
                   "Inner size of the feed-forward layers, or of each expert: a multiple of 256")
        ->capture_default_str();
    app.add_option("--experts", arguments.train.shape.n_expert,
                   "Experts of each layer (a qwen3moe model); 0 = a dense llama model")
        ->capture_default_str();
    app.add_option("--experts-used", arguments.train.shape.n_expert_used,
                   "Experts that each token takes")
        ->capture_default_str();
    app.add_option("--seed", arguments.train.seed, "Seed of weights and batches")
        ->capture_default_str();
    app.add_option("--threads", arguments.train.n_threads, "Threads; 0 = all")
        ->capture_default_str();
    app.add_option("--train-out", arguments.train_out,
                   "Also write an excerpt of the training text (200 KiB at most)");
    app.add_option("--valid-out", arguments.valid_out,
                   "Also write the validation text (64 KiB at most)");
}

}  // namespace

int main(int argc, char** argv) {
    try {
        CLI::App app{"Trains a small model on text files with the engine's own gradients"};
        Arguments arguments;
        add_options(app, arguments);
        CLI11_PARSE(app, argc, argv);
        return run(arguments);
    } catch (const std::exception& error) {
        fmt::print(stderr, "voodoo-train-tiny: {}\n", error.what());
        return 1;
    }
}
