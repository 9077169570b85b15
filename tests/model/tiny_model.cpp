#include "model/tiny_model.h"

#include "base/files.h"
#include "base/random.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>

namespace voodoo::testing {

namespace {

void add_vocabulary(gguf_context* file, const TinyModelOptions& options) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};  // unknown, control, control
    for (int b = 0; b < 256; ++b) {
        tokens.push_back(fmt::format("<0x{:02X}>", b));
        types.push_back(6);  // byte
    }
    tokens.push_back("\xE2\x96\x81");  // the mark that stands for a space
    types.push_back(1);                // normal
    for (int i = 0; i < options.n_vocab_extra; ++i) {
        tokens.push_back(fmt::format("extra{}", i));
        types.push_back(1);
    }
    std::vector<const char*> pointers;
    for (const std::string& token : tokens) {
        pointers.push_back(token.c_str());
    }
    const std::vector<float> scores(tokens.size(), 0.0f);
    gguf_set_val_str(file, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
    gguf_set_arr_data(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(),
                      scores.size());
    gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
    gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", kBos);
    gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", kEos);
    gguf_set_val_bool(file, "tokenizer.ggml.add_bos_token", options.add_bos);
    gguf_set_val_bool(file, "tokenizer.ggml.add_space_prefix", false);
}

/// Adds random tensors to the file; the context holds their data.
class TensorMaker {
public:
    TensorMaker(gguf_context* file, ggml_context* memory, uint64_t seed)
        : file_(file), memory_(memory), random_(seed, "tiny model") {}

    void matrix(const std::string& name, int64_t columns, int64_t rows, double deviation) {
        fill(ggml_new_tensor_2d(memory_, GGML_TYPE_BF16, columns, rows), name, deviation);
    }

    void experts(const std::string& name, int64_t columns, int64_t rows, int64_t n,
                 double deviation) {
        fill(ggml_new_tensor_3d(memory_, GGML_TYPE_BF16, columns, rows, n), name, deviation);
    }

    /// The last expert's score is 0: of 20 and more, never one of the two largest.
    void router(const std::string& name, int64_t columns, int64_t n_expert) {
        ggml_tensor* tensor = ggml_new_tensor_2d(memory_, GGML_TYPE_F32, columns, n_expert);
        auto* data = static_cast<float*>(tensor->data);
        for (int64_t i = 0; i < columns * n_expert; ++i) {
            const bool is_last = i / columns == n_expert - 1;
            data[i] = is_last ? 0.0f : static_cast<float>(0.1 * random_.normal());
        }
        add(tensor, name);
    }

    void norm(const std::string& name, int64_t n) {
        ggml_tensor* tensor = ggml_new_tensor_1d(memory_, GGML_TYPE_F32, n);
        for (int64_t i = 0; i < n; ++i) {
            static_cast<float*>(tensor->data)[i] = static_cast<float>(1.0 + 0.1 * random_.normal());
        }
        add(tensor, name);
    }

private:
    void fill(ggml_tensor* tensor, const std::string& name, double deviation) {
        auto* data = static_cast<ggml_bf16_t*>(tensor->data);
        for (int64_t i = 0; i < ggml_nelements(tensor); ++i) {
            data[i] = ggml_fp32_to_bf16(static_cast<float>(deviation * random_.normal()));
        }
        add(tensor, name);
    }

    void add(ggml_tensor* tensor, const std::string& name) {
        ggml_set_name(tensor, name.c_str());
        gguf_add_tensor(file_, tensor);
    }

    gguf_context* file_;
    ggml_context* memory_;
    Random random_;
};

}  // namespace

void write_tiny_model(const std::filesystem::path& path, const TinyModelOptions& options) {
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> file(gguf_init_empty(), gguf_free);
    const std::string& arch = options.architecture;
    const auto n_embd = static_cast<uint32_t>(options.n_embd);
    gguf_set_val_str(file.get(), "general.architecture", arch.c_str());
    gguf_set_val_u32(file.get(), (arch + ".context_length").c_str(), 4096);
    gguf_set_val_u32(file.get(), (arch + ".embedding_length").c_str(), n_embd);
    gguf_set_val_u32(file.get(), (arch + ".block_count").c_str(),
                     static_cast<uint32_t>(options.n_layer));
    const int64_t d = options.n_embd;
    const int64_t n_ff = options.n_ff > 0 ? options.n_ff : options.n_expert > 0 ? d : 2 * d;
    gguf_set_val_u32(file.get(), (arch + ".feed_forward_length").c_str(),
                     static_cast<uint32_t>(n_ff));
    if (options.n_expert > 0) {
        gguf_set_val_u32(file.get(), (arch + ".expert_count").c_str(),
                         static_cast<uint32_t>(options.n_expert));
        gguf_set_val_u32(file.get(), (arch + ".expert_used_count").c_str(),
                         static_cast<uint32_t>(options.n_expert_used));
    }
    if (options.n_expert_groups > 1) {
        gguf_set_val_u32(file.get(), (arch + ".expert_group_count").c_str(),
                         static_cast<uint32_t>(options.n_expert_groups));
        gguf_set_val_u32(file.get(), (arch + ".expert_group_used_count").c_str(), 2);
    }
    gguf_set_val_u32(file.get(), (arch + ".attention.head_count").c_str(), 4);
    gguf_set_val_f32(file.get(), (arch + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5f);
    add_vocabulary(file.get(), options);

    ggml_init_params memory = {};
    const int64_t block_elements = 4 * d * d + 3 * d * n_ff * std::max(options.n_expert, 1);
    memory.mem_size = (size_t{64} << 20) + static_cast<size_t>(2 * block_elements) *
                                               static_cast<size_t>(options.n_layer);
    const std::unique_ptr<ggml_context, void (*)(ggml_context*)> tensors(ggml_init(memory),
                                                                         ggml_free);
    TensorMaker make(file.get(), tensors.get(), options.seed);
    const int64_t n_vocab = kVocab + options.n_vocab_extra;
    make.matrix("token_embd.weight", d, n_vocab, 1.0);
    for (int layer = 0; layer < options.n_layer; ++layer) {
        const std::string block = fmt::format("blk.{}.", layer);
        make.norm(block + "attn_norm.weight", d);
        for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
            make.matrix(block + name + ".weight", d, d, 0.06);
        }
        make.norm(block + "ffn_norm.weight", d);
        if (options.n_expert > 0) {
            make.router(block + "ffn_gate_inp.weight", d, options.n_expert);
            make.experts(block + "ffn_gate_exps.weight", d, n_ff, options.n_expert, 0.06);
            make.experts(block + "ffn_up_exps.weight", d, n_ff, options.n_expert, 0.06);
            make.experts(block + "ffn_down_exps.weight", n_ff, d, options.n_expert, 0.06);
            continue;
        }
        make.matrix(block + "ffn_gate.weight", d, n_ff, 0.06);
        make.matrix(block + "ffn_up.weight", d, n_ff, 0.06);
        make.matrix(block + "ffn_down.weight", n_ff, d, 0.06);
    }
    make.norm("output_norm.weight", d);
    make.matrix("output.weight", d, n_vocab, 0.12);
    ASSERT_TRUE(gguf_write_to_file(file.get(), path.c_str(), false));
}

TempFolder::TempFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("voodoo_test_{}_{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
}

TempFolder::~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string sample_text(size_t n, uint64_t seed) {
    Random random(seed, "text");
    std::string text;
    while (text.size() < n) {
        const uint64_t length = 1 + random.below(7);
        for (uint64_t i = 0; i < length; ++i) {
            text += static_cast<char>('a' + random.below(26));
        }
        text += ' ';
    }
    text.resize(n);
    return text;
}

std::string run_llama_tool(const std::string& tool, const std::vector<std::string>& arguments) {
    std::string command = std::string(VOODOO_LLAMA_BIN) + "/" + tool;
    for (const std::string& argument : arguments) {
        command += " '" + argument + "'";
    }
    command += " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) {
        ADD_FAILURE() << "can't run " << command;
        return {};
    }
    std::string output;
    std::array<char, 4096> buffer{};
    while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
        output.append(buffer.data(), n);
    }
    EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << output;
    return output;
}

std::string run_llama_tool_until(const std::string& tool, const std::vector<std::string>& arguments,
                                 const std::string& wanted) {
    std::string output;
    for (int i = 0; i < 5 && output.find(wanted) == std::string::npos; ++i) {
        output = run_llama_tool(tool, arguments);
    }
    return output;
}

std::map<std::string, int> file_types(const std::filesystem::path& path) {
    gguf_init_params init = {};
    init.no_alloc = true;
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> file(
        gguf_init_from_file(path.c_str(), init), gguf_free);
    std::map<std::string, int> types;
    if (file == nullptr) {
        ADD_FAILURE() << "can't read " << path;
        return types;
    }
    for (int64_t i = 0; i < gguf_get_n_tensors(file.get()); ++i) {
        types[gguf_get_tensor_name(file.get(), i)] = gguf_get_tensor_type(file.get(), i);
    }
    return types;
}

}  // namespace voodoo::testing
