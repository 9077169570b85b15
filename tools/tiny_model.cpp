#include "tools/tiny_model.h"

#include <fmt/format.h>

#include <cmath>

#include "base/random.h"
#include "gguf/writer.h"

namespace voodoo::tools {

namespace {

using gguf::PlannedTensor;
using gguf::Value;

// llama.cpp's token types.
constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kByte = 6;
// general.file_type of a file of BF16 matrices.
constexpr uint32_t kMostlyBf16 = 32;

PlannedTensor matrix(std::string name, uint32_t n_inputs, uint32_t n_outputs) {
    return {std::move(name), GGML_TYPE_BF16, {n_inputs, n_outputs, 1, 1}};
}

PlannedTensor norm(std::string name, uint32_t n) {
    return {std::move(name), GGML_TYPE_F32, {n, 1, 1, 1}};
}

PlannedTensor experts(std::string name, uint32_t n_inputs, uint32_t n_outputs, uint32_t n) {
    return {std::move(name), GGML_TYPE_BF16, {n_inputs, n_outputs, n, 1}};
}

bool is_norm(const PlannedTensor& tensor) {
    return tensor.ne[1] == 1;
}

double start_deviation(const PlannedTensor& tensor, const TinyShape& shape) {
    if (tensor.name == "token_embd.weight") {
        return 0.02;
    }
    const double deviation = 1.0 / std::sqrt(static_cast<double>(tensor.ne[0]));
    const bool adds_to_residual = tensor.name.find("attn_output") != std::string::npos ||
                                  tensor.name.find("ffn_down") != std::string::npos;
    return adds_to_residual ? deviation / std::sqrt(2.0 * shape.n_layer) : deviation;
}

void add_vocabulary(gguf::Metadata& metadata) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {kUnknown, kControl, kControl};
    for (int b = 0; b < 256; ++b) {
        tokens.push_back(fmt::format("<0x{:02X}>", b));
        types.push_back(kByte);
    }
    tokens.emplace_back("\xE2\x96\x81");  // the mark that llama.cpp puts in place of a space
    types.push_back(kNormal);
    const std::vector<float> scores(tokens.size(), 0.0F);
    const auto set = [&](const char* key, Value value) {
        gguf::set_value(metadata, fmt::format("tokenizer.ggml.{}", key), std::move(value));
    };
    set("model", Value::text("llama"));
    set("tokens", Value::texts(tokens));
    set("scores", Value::array<float>(scores));
    set("token_type", Value::array<int32_t>(types));
    set("unknown_token_id", Value::scalar<uint32_t>(0));
    set("bos_token_id", Value::scalar<uint32_t>(1));
    set("eos_token_id", Value::scalar<uint32_t>(2));
    set("add_bos_token", Value::scalar<bool>(true));
    set("add_eos_token", Value::scalar<bool>(false));
    set("add_space_prefix", Value::scalar<bool>(false));
}

}  // namespace

std::vector<PlannedTensor> tiny_tensors(const TinyShape& shape) {
    const uint32_t d = shape.n_embd;
    const uint32_t d_kv = d / shape.n_head * shape.n_head_kv;
    std::vector<PlannedTensor> tensors = {matrix("token_embd.weight", d, 260)};
    for (uint32_t layer = 0; layer < shape.n_layer; ++layer) {
        const auto name = [layer](const char* part) {
            return fmt::format("blk.{}.{}.weight", layer, part);
        };
        tensors.push_back(norm(name("attn_norm"), d));
        tensors.push_back(matrix(name("attn_q"), d, d));
        tensors.push_back(matrix(name("attn_k"), d, d_kv));
        tensors.push_back(matrix(name("attn_v"), d, d_kv));
        tensors.push_back(matrix(name("attn_output"), d, d));
        tensors.push_back(norm(name("ffn_norm"), d));
        if (shape.n_expert > 0) {
            tensors.push_back(norm(name("attn_q_norm"), d / shape.n_head));
            tensors.push_back(norm(name("attn_k_norm"), d / shape.n_head));
            tensors.push_back({name("ffn_gate_inp"), GGML_TYPE_F32, {d, shape.n_expert, 1, 1}});
            tensors.push_back(experts(name("ffn_gate_exps"), d, shape.n_ff, shape.n_expert));
            tensors.push_back(experts(name("ffn_up_exps"), d, shape.n_ff, shape.n_expert));
            tensors.push_back(experts(name("ffn_down_exps"), shape.n_ff, d, shape.n_expert));
            continue;
        }
        tensors.push_back(matrix(name("ffn_gate"), d, shape.n_ff));
        tensors.push_back(matrix(name("ffn_up"), d, shape.n_ff));
        tensors.push_back(matrix(name("ffn_down"), shape.n_ff, d));
    }
    tensors.push_back(norm("output_norm.weight", d));
    return tensors;
}

gguf::Metadata tiny_metadata(const TinyShape& shape, const std::string& name,
                             const gguf::Metadata& extra) {
    gguf::Metadata metadata;
    const auto set = [&](const char* key, Value value) {
        gguf::set_value(metadata, key, std::move(value));
    };
    const std::string architecture = shape.n_expert > 0 ? "qwen3moe" : "llama";
    set("general.architecture", Value::text(architecture));
    set("general.type", Value::text("model"));
    set("general.name", Value::text(name));
    set("general.file_type", Value::scalar<uint32_t>(kMostlyBf16));
    for (const gguf::KeyValue& pair : extra) {
        gguf::set_value(metadata, pair.key, pair.value);
    }
    const uint32_t head = shape.n_embd / shape.n_head;
    const auto set_arch = [&](const char* key, Value value) {
        set((architecture + "." + key).c_str(), std::move(value));
    };
    set_arch("context_length", Value::scalar(shape.n_ctx));
    set_arch("embedding_length", Value::scalar(shape.n_embd));
    set_arch("block_count", Value::scalar(shape.n_layer));
    set_arch("feed_forward_length", Value::scalar(shape.n_ff));
    set_arch("attention.head_count", Value::scalar(shape.n_head));
    set_arch("attention.head_count_kv", Value::scalar(shape.n_head_kv));
    set_arch("attention.layer_norm_rms_epsilon", Value::scalar(1e-5F));
    set_arch("rope.dimension_count", Value::scalar(head));
    set_arch("rope.freq_base", Value::scalar(10000.0F));
    set_arch("vocab_size", Value::scalar<uint32_t>(260));
    if (shape.n_expert > 0) {
        set_arch("expert_count", Value::scalar(shape.n_expert));
        set_arch("expert_used_count", Value::scalar(shape.n_expert_used));
        set_arch("expert_feed_forward_length", Value::scalar(shape.n_ff));
    }
    add_vocabulary(metadata);
    return metadata;
}

std::vector<Parameter> random_parameters(const TinyShape& shape, uint64_t seed) {
    std::vector<Parameter> parameters;
    for (const PlannedTensor& tensor : tiny_tensors(shape)) {
        Parameter& p = parameters.emplace_back();
        p.resize(static_cast<size_t>(tensor.ne[0] * tensor.ne[1] * tensor.ne[2]));
        p.decays = !is_norm(tensor);
        Random random(seed, tensor.name);
        const double deviation = start_deviation(tensor, shape);
        for (float& w : p.value) {
            w = p.decays ? static_cast<float>(deviation * random.normal()) : 1.0F;
        }
    }
    return parameters;
}

void round_matrices(const TinyShape& shape, std::vector<Parameter>& parameters) {
    const std::vector<PlannedTensor> tensors = tiny_tensors(shape);
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].type != GGML_TYPE_BF16) {
            continue;
        }
        for (float& w : parameters[i].value) {
            w = ggml_bf16_to_fp32(ggml_fp32_to_bf16(w));
        }
    }
}

void write_tiny(const std::filesystem::path& path, const TinyShape& shape,
                const gguf::Metadata& metadata, const std::vector<Parameter>& parameters) {
    const std::vector<PlannedTensor> tensors = tiny_tensors(shape);
    VOODOO_CHECK(tensors.size() == parameters.size(), "{} parameters for {} tensors",
                 parameters.size(), tensors.size());
    gguf::Writer writer(path, metadata, tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const std::vector<float>& values = parameters[i].value;
        if (tensors[i].type == GGML_TYPE_F32) {
            writer.write_tensor(tensors[i].name, std::as_bytes(std::span(values)));
            continue;
        }
        std::vector<ggml_bf16_t> rounded(values.size());
        for (size_t j = 0; j < values.size(); ++j) {
            rounded[j] = ggml_fp32_to_bf16(values[j]);
        }
        writer.write_tensor(tensors[i].name, std::as_bytes(std::span(rounded)));
    }
    writer.commit();
}

}  // namespace voodoo::tools
