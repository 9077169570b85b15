#include "model/model.h"

#include "base/files.h"
#include "model/llama_handle.h"
#include "model/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

namespace voodoo::model {
namespace {

using testing::TempFolder;
using testing::write_tiny_model;

/// Kind of the Error that loading throws, and its text.
std::pair<ErrorKind, std::string> load_error(const std::filesystem::path& path) {
    try {
        Model::load(path);
    } catch (const Error& error) {
        return {error.kind(), error.what()};
    }
    ADD_FAILURE() << path << " was loaded";
    return {ErrorKind::internal, ""};
}

TEST(Model, DescribesWhatItLoaded) {
    TempFolder folder;
    write_tiny_model(folder / "m.gguf");
    const Model model = Model::load(folder / "m.gguf");
    EXPECT_EQ(model.architecture(), "llama");
    EXPECT_EQ(model.n_embd(), 256);
    EXPECT_EQ(model.n_layer(), 2);
    EXPECT_EQ(model.n_vocab(), testing::kVocab);
    EXPECT_EQ(model.n_ctx_train(), 4096);
    EXPECT_EQ(model.find_metadata("llama.attention.head_count"), "4");
    EXPECT_EQ(model.find_metadata("no.such.key"), std::nullopt);
    EXPECT_EQ(model.n_params(),
              2 * 260 * 256 + 256 + 2 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256));
    EXPECT_TRUE(model.has_decoder());
    EXPECT_FALSE(model.has_encoder());
    EXPECT_FALSE(model.is_recurrent());
    EXPECT_TRUE(model.has_tokenizer());
    EXPECT_NO_THROW(model.require_causal("this test"));
}

TEST(Model, ReportsAMissingFileAsIo) {
    EXPECT_EQ(load_error("/nonexistent/model.gguf").first, ErrorKind::io);
    TempFolder folder;
    EXPECT_EQ(load_error(folder / "").first, ErrorKind::io) << "a folder is no model";
}

TEST(Model, ReportsCorruptFilesWithLlamaCppsReason) {
    TempFolder folder;
    write_file_atomic(folder / "text.gguf", "this is no model at all, not even nearly");
    const auto [kind, message] = load_error(folder / "text.gguf");
    EXPECT_EQ(kind, ErrorKind::bad_file);
    EXPECT_NE(message.find("magic"), std::string::npos) << message;

    write_tiny_model(folder / "m.gguf");
    const std::string bytes = read_file(folder / "m.gguf");
    write_file_atomic(folder / "short.gguf", std::string_view(bytes).substr(0, bytes.size() / 2));
    EXPECT_EQ(load_error(folder / "short.gguf").first, ErrorKind::bad_file);
}

TEST(Model, ReportsAnUnknownArchitectureAsUnsupported) {
    TempFolder folder;
    testing::TinyModelOptions options;
    options.architecture = "perpetuum";
    write_tiny_model(folder / "m.gguf", options);
    const auto [kind, message] = load_error(folder / "m.gguf");
    EXPECT_EQ(kind, ErrorKind::unsupported_model);
    EXPECT_NE(message.find("perpetuum"), std::string::npos) << message;
}

TEST(Model, IsQuietUnlessAnObserverWantsItsLog) {
    struct Collector : Observer {
        void log(LogLevel, std::string_view message) override {
            const std::lock_guard lock(mutex);
            lines.emplace_back(message);
        }
        std::mutex mutex;
        std::vector<std::string> lines;
    };
    TempFolder folder;
    write_tiny_model(folder / "m.gguf");
    Collector collector;
    ::testing::internal::CaptureStderr();
    Model::load(folder / "m.gguf");
    set_llama_log_observer(&collector);
    Model::load(folder / "m.gguf");
    set_llama_log_observer(nullptr);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_GT(collector.lines.size(), 10u);
}

TEST(Context, RefusesOptionsThatMakeNoSense) {
    TempFolder folder;
    write_tiny_model(folder / "m.gguf");
    const Model model = Model::load(folder / "m.gguf");
    const auto kind_for = [&model](const auto& change) {
        ContextOptions options;
        options.n_threads = 1;
        change(options);
        try {
            Context context(model, options);
        } catch (const Error& error) {
            return error.kind();
        }
        return ErrorKind::internal;
    };
    EXPECT_EQ(kind_for([](ContextOptions& o) { o.n_ctx = 0; }), ErrorKind::usage);
    EXPECT_EQ(kind_for([](ContextOptions& o) { o.n_batch = 0; }), ErrorKind::usage);
    EXPECT_EQ(kind_for([](ContextOptions& o) { o.n_seq_max = 100000; }), ErrorKind::usage);
    EXPECT_EQ(kind_for([](ContextOptions& o) {
                  o.flash_attention = FlashAttention::off;
                  o.type_v = GGML_TYPE_Q8_0;
              }),
              ErrorKind::unsupported_model);

    LoadOptions vocab_only;
    vocab_only.vocab_only = true;
    const Model vocabulary = Model::load(folder / "m.gguf", vocab_only);
    EXPECT_THROW(Context(vocabulary, ContextOptions{}), Error);
}

TEST(Context, DecodesTheSameLogitsWhetherTokensComeTogetherOrOneByOne) {
    TempFolder folder;
    write_tiny_model(folder / "m.gguf");
    ContextOptions options;
    options.n_ctx = 64;
    options.n_threads = 1;
    options.type_k = options.type_v = GGML_TYPE_F32;
    options.flash_attention = FlashAttention::off;
    Context context(Model::load(folder / "m.gguf"), options);
    const std::vector<Token> tokens = {1, 40, 50, 60, 70};

    Batch batch;
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.add(tokens[i], static_cast<int32_t>(i), 0, true);
    }
    context.decode(batch);
    const auto all = context.all_logits(tokens.size());
    const std::vector<float> together(all.begin(), all.end());

    context.clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.clear();
        batch.add(tokens[i], static_cast<int32_t>(i), 0, true);
        context.decode(batch);
        const auto logits = context.logits_of(0);
        ASSERT_EQ(logits.size(), size_t{testing::kVocab});
        for (size_t k = 0; k < logits.size(); ++k) {
            ASSERT_NEAR(logits[k], together[i * logits.size() + k], 0.05) << "token " << i;
        }
    }
}

TEST(Context, ReportsTokensThatCannotBeDecoded) {
    TempFolder folder;
    write_tiny_model(folder / "m.gguf");
    ContextOptions options;
    options.n_ctx = 64;
    options.n_batch = 16;
    options.n_threads = 1;
    Context context(Model::load(folder / "m.gguf"), options);
    const auto kind_of = [&context](const Batch& batch) {
        try {
            context.decode(batch);
        } catch (const Error& error) {
            return error.kind();
        }
        return ErrorKind::internal;
    };
    EXPECT_EQ(kind_of(Batch()), ErrorKind::usage);
    Batch unknown;
    unknown.add(100000, 0, 0, true);
    EXPECT_EQ(kind_of(unknown), ErrorKind::usage);
    Batch large;
    for (int i = 0; i < 17; ++i) {
        large.add(5, i, 0, false);
    }
    EXPECT_EQ(kind_of(large), ErrorKind::usage);
}

TEST(Context, StopsWhenCancelled) {
    TempFolder folder;
    write_tiny_model(folder / "m.gguf");
    Cancellation cancellation;
    ContextOptions options;
    options.n_threads = 1;
    options.cancellation = &cancellation;
    Context context(Model::load(folder / "m.gguf"), options);
    Batch batch;
    batch.add(1, 0, 0, true);
    cancellation.request();
    try {
        context.decode(batch);
        FAIL() << "it was decoded";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::interrupted);
    }
}

}  // namespace
}  // namespace voodoo::model
