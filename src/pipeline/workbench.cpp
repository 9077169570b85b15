#include "pipeline/workbench.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "device/memory.h"
#include "engine/audit.h"
#include "graph/functionalize.h"
#include "model/capture.h"
#include "model/presets.h"

namespace voodoo::pipeline {
namespace {

model::Model load_model(const gguf::File& file) {
    model::LoadOptions options;
    options.use_extra_bufts = false;
    return model::Model::load(file.paths().front(), options);
}

quant::Encoder open_encoder(const Settings& settings) {
    return settings.ggml_lib.empty() ? quant::Encoder()
                                     : quant::Encoder::open_library(settings.ggml_lib);
}

bool is_source_type(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           type == GGML_TYPE_Q8_0;
}

}  // namespace

Workbench::Workbench(const Settings& settings, Observer& observer)
    : settings_(settings),
      file_(gguf::File::open(settings.model)),
      model_(load_model(file_)),
      encoder_(open_encoder(settings)),
      pool_(settings.n_threads) {
    model_.require_causal("quantization");
    check_source();
    find_tensors();
    apply_pins();
    Sha256 hash;
    for (const gguf::TensorInfo& tensor : file_.tensors()) {
        hash.update(fmt::format("{} {} {} {} {} {} {}\n", tensor.name, ggml_type_name(tensor.type),
                                tensor.ne[0], tensor.ne[1], tensor.ne[2], tensor.ne[3],
                                tensor.offset));
        n_weights_ += tensor.n_elements();
    }
    for (const auto& path : file_.paths()) {
        hash.update(fmt::format("{} {}\n", std::filesystem::file_size(path),
                                std::filesystem::last_write_time(path).time_since_epoch().count()));
    }
    fingerprint_ = hash.hex();
    target_bytes_ = find_target();
    observer.log(
        LogLevel::debug,
        fmt::format("{}: {} weights in {} tensors, {} of them quantizable", model_.description(),
                    n_weights_, file_.tensors().size(), tensors_.size()));
}

void Workbench::check_source() const {
    for (const gguf::TensorInfo& tensor : file_.tensors()) {
        if (tensor.n_rows() > 1 && ggml_is_quantized(tensor.type) && !is_source_type(tensor.type)) {
            throw Error(ErrorKind::usage,
                        fmt::format("the model is already quantized: {} is {}", tensor.name,
                                    ggml_type_name(tensor.type)),
                        settings_.model.string(), "start from the BF16, F16, F32 or Q8_0 file");
        }
    }
}

void Workbench::find_tensors() {
    std::vector<model::TensorShape> shapes;
    for (const gguf::TensorInfo& tensor : file_.tensors())
        shapes.push_back({tensor.name, tensor.ne});
    const std::vector<bool> allowed = model::allows_quantization(model_, shapes);
    for (size_t i = 0; i < allowed.size(); ++i) {
        const gguf::TensorInfo& info = file_.tensors()[i];
        if (!allowed[i] || !is_source_type(info.type)) continue;
        Tensor tensor;
        tensor.name = info.name;
        tensor.info = &info;
        tensor.shape = {info.ne[0], info.ne[1], info.ne[2] * info.ne[3]};
        tensor.is_embedding_or_head = quant::is_embedding_or_head(info.name);
        tensors_.push_back(std::move(tensor));
    }
    if (tensors_.empty()) {
        throw Error(ErrorKind::unsupported_model,
                    "the model has no tensor that llama.cpp would quantize",
                    settings_.model.string());
    }
}

void Workbench::apply_pins() {
    std::vector<std::string> problems;
    const auto find = [&](const std::string& name) -> Tensor* {
        const int index = find_tensor(name);
        if (index < 0)
            problems.push_back(fmt::format("no quantizable tensor is named \"{}\"", name));
        return index < 0 ? nullptr : &tensors_[static_cast<size_t>(index)];
    };
    for (const auto& [name, type_name] : settings_.tensor_types) {
        Tensor* tensor = find(name);
        const auto type = quant::find_type(type_name);
        if (!type) problems.push_back(fmt::format("unknown type \"{}\" for {}", type_name, name));
        if (tensor == nullptr || !type) continue;
        const int64_t n_per_row = tensor->shape.n_per_row;
        const bool is_outer = tensor->is_embedding_or_head;
        if (quant::is_legal(*type, n_per_row, true, is_outer) &&
            !quant::is_legal(*type, n_per_row, gets_importance(*tensor), is_outer)) {
            problems.push_back(fmt::format(
                "{} is not possible for {}: it needs importances, which this tensor does not get",
                type_name, name));
        } else if (!quant::is_legal(*type, n_per_row, true, is_outer)) {
            problems.push_back(fmt::format("{} is not possible for {}: its rows have {} weights",
                                           type_name, name, tensor->shape.n_per_row));
        } else {
            tensor->pinned = quant::type_info(*type).name;
        }
    }
    for (const std::string& name : settings_.keep) {
        if (Tensor* tensor = find(name)) tensor->pinned = "keep";
    }
    for (const std::string& name : settings_.types) {
        if (!quant::find_type(name)) problems.push_back(fmt::format("unknown type \"{}\"", name));
    }
    if (problems.empty()) {
        std::erase_if(tensors_, [](const Tensor& tensor) { return tensor.pinned == "keep"; });
        return;
    }
    throw Error(ErrorKind::usage, fmt::format("{}", fmt::join(problems, "; ")), "",
                "`voodoo inspect` lists tensors and types");
}

bool Workbench::gets_importance(const Tensor& tensor) const {
    if (!settings_.imatrix.empty()) return true;
    if (tensor.name == "per_layer_token_embd.weight") return false;
    return tensor.name != "token_embd.weight" || file_.find_tensor("output.weight") == nullptr;
}

int Workbench::find_tensor(const std::string& name) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
        if (tensors_[i].name == name) return static_cast<int>(i);
    }
    return -1;
}

std::map<std::string, quant::MatrixShape> Workbench::shapes() const {
    std::map<std::string, quant::MatrixShape> shapes;
    for (const Tensor& tensor : tensors_) shapes.emplace(tensor.name, tensor.shape);
    return shapes;
}

graph::Graph Workbench::capture(int n_sequences, int32_t chunk_len, bool need_gradients) const {
    // Random tokens, so that the leaf that holds them can't be taken for positions.
    Random random(settings_.seed, "capture");
    std::vector<int32_t> tokens(static_cast<size_t>(n_sequences) * static_cast<size_t>(chunk_len));
    for (int32_t& token : tokens)
        token = static_cast<int32_t>(random.below(static_cast<uint64_t>(model_.n_vocab())));
    model::CaptureOptions options;
    options.n_sequences = n_sequences;
    options.n_threads = settings_.n_threads;
    graph::Graph graph = graph::functionalize(model::capture(model_, tokens, options).trace);
    if (need_gradients) {
        const auto missing = engine::audit(
            graph, [this](const std::string& name) { return find_tensor(name) >= 0; });
        if (!missing.empty()) {
            throw Error(ErrorKind::unsupported_op,
                        fmt::format("{} can't be differentiated yet: {}", model_.architecture(),
                                    engine::describe(missing)),
                        settings_.model.string(), "nothing was computed");
        }
    }
    return graph;
}

uint64_t Workbench::memory_bytes() const {
    if (settings_.memory_bytes > 0) return settings_.memory_bytes;
    return device::available_memory() / 10 * 6;
}

gguf::Metadata Workbench::output_metadata(const std::map<std::string, ggml_type>& types,
                                          const std::string& plan_hash, const std::string& method,
                                          const EncodingFacts& facts) const {
    gguf::Metadata metadata = gguf::without_split_keys(file_.metadata());
    // All tensors count, those that are kept too.
    std::map<ggml_type, int64_t> weights;
    for (const gguf::TensorInfo& tensor : file_.tensors()) {
        const auto found = types.find(tensor.name);
        weights[found == types.end() ? tensor.type : found->second] += tensor.n_elements();
    }
    const auto most =
        std::max_element(weights.begin(), weights.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    gguf::set_value(metadata, "general.quantization_version",
                    gguf::Value::scalar<uint32_t>(GGML_QNT_VERSION));
    gguf::set_value(metadata, "general.file_type",
                    gguf::Value::scalar<uint32_t>(model::ftype_for_type(most->first)));
    gguf::set_value(metadata, "voodoo.version", gguf::Value::text(VOODOO_VERSION));
    gguf::set_value(metadata, "voodoo.target_bytes",
                    gguf::Value::scalar<uint64_t>(target_bytes_.value_or(0)));
    gguf::set_value(metadata, "voodoo.plan_hash", gguf::Value::text(plan_hash));
    gguf::set_value(metadata, "voodoo.error_feedback", gguf::Value::scalar<bool>(facts.feedback));
    gguf::set_value(metadata, "voodoo.tuned_scales", gguf::Value::scalar<bool>(facts.tuned));
    // Fixed width: the size of the header must not depend on which plan wins.
    gguf::set_value(metadata, "voodoo.method", gguf::Value::text(fmt::format("{:<32.32}", method)));
    return metadata;
}

std::vector<gguf::PlannedTensor> Workbench::output_tensors(
    const std::map<std::string, ggml_type>& types) const {
    std::vector<gguf::PlannedTensor> planned = gguf::planned_tensors(file_.tensors());
    for (gguf::PlannedTensor& tensor : planned) {
        if (const auto found = types.find(tensor.name); found != types.end())
            tensor.type = found->second;
    }
    return planned;
}

uint64_t Workbench::output_size(const std::map<std::string, ggml_type>& types) const {
    const gguf::Metadata metadata = output_metadata(types, std::string(64, '0'), "");
    if (settings_.split_max_bytes == 0) {
        return gguf::file_size_bytes(metadata, output_tensors(types));
    }
    // Every shard has a header of its own.
    uint64_t size = 0;
    for (const gguf::Layout& shard :
         gguf::make_split_layout(metadata, output_tensors(types), settings_.split_max_bytes)) {
        size += shard.file_size_bytes;
    }
    return size;
}

uint64_t Workbench::padded_bytes(const Tensor& tensor, ggml_type type) const {
    return gguf::padded(gguf::tensor_size_bytes(type, tensor.info->ne), file_.alignment());
}

uint64_t Workbench::fixed_bytes() const {
    // With shards an upper bound: the larger source types make more of them than the output has.
    uint64_t bytes = output_size({});
    for (const Tensor& tensor : tensors_) bytes -= padded_bytes(tensor, tensor.info->type);
    return bytes;
}

std::optional<uint64_t> Workbench::find_target() const {
    if (settings_.size_bytes) return *settings_.size_bytes;
    if (settings_.bpw)
        return static_cast<uint64_t>(*settings_.bpw * static_cast<double>(n_weights_) / 8.0);
    if (!settings_.preset.empty()) {
        return model::preset_layout(settings_.model, model::preset(settings_.preset).name, true)
            .file_size_bytes;
    }
    if (!settings_.like.empty()) return gguf::File::open(settings_.like).total_size_bytes();
    return std::nullopt;
}

uint64_t Workbench::target_bytes() const {
    if (target_bytes_) return *target_bytes_;
    throw Error(ErrorKind::usage, "no target size", "",
                "give --size, e.g. --size 95MB, --bpw, --preset or --like");
}

}  // namespace voodoo::pipeline
