// llama.cpp offers no call for the types a preset chooses with an imatrix
// (llama_quant_compute_types always behaves as without one), but the dry run of
// llama_model_quantize logs one line per tensor. We read those lines and insist that they account
// for every tensor of the model, so that a change of format is an error, not a wrong plan.
#include "model/presets.h"

#include "model/llama_handle.h"

#include <gguf.h>
#include <llama-ext.h>
#include <llama.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>

namespace voodoo::model {

namespace {

// Ordered by the size of what they make of a large dense model.
constexpr std::array kPresets = {
    Preset{"Q1_0", LLAMA_FTYPE_MOSTLY_Q1_0, 1.13, false},
    Preset{"IQ1_S", LLAMA_FTYPE_MOSTLY_IQ1_S, 1.56, true},
    Preset{"TQ1_0", LLAMA_FTYPE_MOSTLY_TQ1_0, 1.69, false},
    Preset{"IQ1_M", LLAMA_FTYPE_MOSTLY_IQ1_M, 1.75, true},
    Preset{"IQ2_XXS", LLAMA_FTYPE_MOSTLY_IQ2_XXS, 2.06, true},
    Preset{"TQ2_0", LLAMA_FTYPE_MOSTLY_TQ2_0, 2.07, false},
    Preset{"Q2_0", LLAMA_FTYPE_MOSTLY_Q2_0, 2.25, false},
    Preset{"IQ2_XS", LLAMA_FTYPE_MOSTLY_IQ2_XS, 2.31, true},
    Preset{"IQ2_S", LLAMA_FTYPE_MOSTLY_IQ2_S, 2.50, true},
    Preset{"IQ2_M", LLAMA_FTYPE_MOSTLY_IQ2_M, 2.70, true},
    Preset{"Q2_K_S", LLAMA_FTYPE_MOSTLY_Q2_K_S, 2.75, true},
    Preset{"Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K, 2.96, false},
    Preset{"IQ3_XXS", LLAMA_FTYPE_MOSTLY_IQ3_XXS, 3.06, true},
    Preset{"IQ3_XS", LLAMA_FTYPE_MOSTLY_IQ3_XS, 3.30, true},
    Preset{"Q3_K_S", LLAMA_FTYPE_MOSTLY_Q3_K_S, 3.41, false},
    Preset{"IQ3_S", LLAMA_FTYPE_MOSTLY_IQ3_S, 3.44, false},
    Preset{"IQ3_M", LLAMA_FTYPE_MOSTLY_IQ3_M, 3.66, false},
    Preset{"Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M, 3.74, false},
    Preset{"Q3_K_L", LLAMA_FTYPE_MOSTLY_Q3_K_L, 4.03, false},
    Preset{"IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS, 4.25, false},
    Preset{"MXFP4_MOE", LLAMA_FTYPE_MOSTLY_MXFP4_MOE, 4.30, false},
    Preset{"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0, 4.34, false},
    Preset{"Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S, 4.37, false},
    Preset{"IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL, 4.50, false},
    Preset{"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M, 4.58, false},
    Preset{"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1, 4.78, false},
    Preset{"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0, 5.20, false},
    Preset{"Q5_K_S", LLAMA_FTYPE_MOSTLY_Q5_K_S, 5.21, false},
    Preset{"Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M, 5.33, false},
    Preset{"Q5_1", LLAMA_FTYPE_MOSTLY_Q5_1, 5.65, false},
    Preset{"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K, 6.14, false},
    Preset{"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0, 8.50, false},
    Preset{"F16", LLAMA_FTYPE_MOSTLY_F16, 16.0, false},
    Preset{"BF16", LLAMA_FTYPE_MOSTLY_BF16, 16.0, false},
    Preset{"F32", LLAMA_FTYPE_ALL_F32, 32.0, false},
};

struct FtypeOfType {
    ggml_type type;
    llama_ftype ftype;
};

// The table by which llama.cpp's loader guesses a file type, and MXFP4, whose only file type is its
// MoE preset's.
constexpr std::array kFtypes = {
    FtypeOfType{GGML_TYPE_F32, LLAMA_FTYPE_ALL_F32},
    FtypeOfType{GGML_TYPE_F16, LLAMA_FTYPE_MOSTLY_F16},
    FtypeOfType{GGML_TYPE_BF16, LLAMA_FTYPE_MOSTLY_BF16},
    FtypeOfType{GGML_TYPE_Q4_0, LLAMA_FTYPE_MOSTLY_Q4_0},
    FtypeOfType{GGML_TYPE_Q4_1, LLAMA_FTYPE_MOSTLY_Q4_1},
    FtypeOfType{GGML_TYPE_Q5_0, LLAMA_FTYPE_MOSTLY_Q5_0},
    FtypeOfType{GGML_TYPE_Q5_1, LLAMA_FTYPE_MOSTLY_Q5_1},
    FtypeOfType{GGML_TYPE_Q8_0, LLAMA_FTYPE_MOSTLY_Q8_0},
    FtypeOfType{GGML_TYPE_Q2_K, LLAMA_FTYPE_MOSTLY_Q2_K},
    FtypeOfType{GGML_TYPE_Q3_K, LLAMA_FTYPE_MOSTLY_Q3_K_M},
    FtypeOfType{GGML_TYPE_Q4_K, LLAMA_FTYPE_MOSTLY_Q4_K_M},
    FtypeOfType{GGML_TYPE_Q5_K, LLAMA_FTYPE_MOSTLY_Q5_K_M},
    FtypeOfType{GGML_TYPE_Q6_K, LLAMA_FTYPE_MOSTLY_Q6_K},
    FtypeOfType{GGML_TYPE_TQ1_0, LLAMA_FTYPE_MOSTLY_TQ1_0},
    FtypeOfType{GGML_TYPE_TQ2_0, LLAMA_FTYPE_MOSTLY_TQ2_0},
    FtypeOfType{GGML_TYPE_IQ2_XXS, LLAMA_FTYPE_MOSTLY_IQ2_XXS},
    FtypeOfType{GGML_TYPE_IQ2_XS, LLAMA_FTYPE_MOSTLY_IQ2_XS},
    FtypeOfType{GGML_TYPE_IQ2_S, LLAMA_FTYPE_MOSTLY_IQ2_S},
    FtypeOfType{GGML_TYPE_IQ3_XXS, LLAMA_FTYPE_MOSTLY_IQ3_XXS},
    FtypeOfType{GGML_TYPE_IQ1_S, LLAMA_FTYPE_MOSTLY_IQ1_S},
    FtypeOfType{GGML_TYPE_IQ1_M, LLAMA_FTYPE_MOSTLY_IQ1_M},
    FtypeOfType{GGML_TYPE_IQ4_NL, LLAMA_FTYPE_MOSTLY_IQ4_NL},
    FtypeOfType{GGML_TYPE_IQ4_XS, LLAMA_FTYPE_MOSTLY_IQ4_XS},
    FtypeOfType{GGML_TYPE_IQ3_S, LLAMA_FTYPE_MOSTLY_IQ3_S},
    FtypeOfType{GGML_TYPE_NVFP4, LLAMA_FTYPE_MOSTLY_NVFP4},
    FtypeOfType{GGML_TYPE_Q1_0, LLAMA_FTYPE_MOSTLY_Q1_0},
    FtypeOfType{GGML_TYPE_Q2_0, LLAMA_FTYPE_MOSTLY_Q2_0},
    FtypeOfType{GGML_TYPE_MXFP4, LLAMA_FTYPE_MOSTLY_MXFP4_MOE},
};

std::string upper(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return result;
}

std::string_view trim(std::string_view text) {
    while (!text.empty() && text.front() == ' ') {
        text.remove_prefix(1);
    }
    while (!text.empty() && text.back() == ' ') {
        text.remove_suffix(1);
    }
    return text;
}

std::optional<int64_t> find_number(std::string_view text) {
    text = trim(text);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

std::optional<ggml_type> find_type(std::string_view name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        const char* type_name = ggml_type_name(type);
        if (type_name != nullptr && name == type_name) {
            return type;
        }
    }
    return std::nullopt;
}

/// One tensor of the dry run.
struct DryRunTensor {
    TensorShape shape;
    ggml_type type;
    int64_t n_tensors;
};

/// Parses "[   1/ 273] blk.0.attn_q.weight   - [  256,   256,     1,     1], type =   bf16, size =
/// A MiB -> B MiB (q4_K)" or, for a tensor that keeps its type, "... type =    f32, size =    0.001
/// MiB".
std::optional<DryRunTensor> find_dry_run_tensor(std::string_view line) {
    const size_t slash = line.find('/');
    const size_t count_end = line.find("] ");
    const size_t shape_begin = line.rfind(" - [");
    const size_t shape_end = line.rfind("], type = ");
    const size_t size_begin = line.rfind(", size = ");
    if (!line.starts_with('[') || count_end == std::string_view::npos || slash > count_end ||
        shape_begin == std::string_view::npos || shape_end == std::string_view::npos ||
        size_begin == std::string_view::npos || shape_begin < count_end ||
        shape_end < shape_begin || size_begin < shape_end) {
        return std::nullopt;
    }
    DryRunTensor tensor;
    const auto n_tensors = find_number(line.substr(slash + 1, count_end - slash - 1));
    if (!n_tensors) {
        return std::nullopt;
    }
    tensor.n_tensors = *n_tensors;
    tensor.shape.name = trim(line.substr(count_end + 2, shape_begin - count_end - 2));

    std::string_view dims = line.substr(shape_begin + 4, shape_end - shape_begin - 4);
    for (size_t i = 0; i < tensor.shape.ne.size(); ++i) {
        const auto ne = find_number(dims.substr(0, dims.find(',')));
        if (!ne) {
            return std::nullopt;
        }
        tensor.shape.ne[i] = *ne;
        dims.remove_prefix(std::min(dims.size(), dims.find(',') == std::string_view::npos
                                                     ? dims.size()
                                                     : dims.find(',') + 1));
    }

    const size_t type_begin = shape_end + std::strlen("], type = ");
    std::string_view type_name = trim(line.substr(type_begin, size_begin - type_begin));
    if (line.find(" -> ", size_begin) != std::string_view::npos) {
        const size_t open = line.rfind('(');
        const size_t close = line.rfind(')');
        if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
            return std::nullopt;
        }
        type_name = line.substr(open + 1, close - open - 1);
    }
    const auto type = find_type(type_name);
    if (!type) {
        return std::nullopt;
    }
    tensor.type = *type;
    return tensor;
}

std::vector<DryRunTensor> dry_run(const std::filesystem::path& path, const Preset& preset,
                                  bool with_imatrix) {
    init_llama();
    if (!std::ifstream(path, std::ios::binary)) {
        throw Error(ErrorKind::io, "can't open the file for reading", path.string());
    }
    // Only whether there is an imatrix matters to the choice of types, so one entry is enough.
    const float one = 1.0f;
    const llama_model_imatrix_data imatrix[] = {{"none", &one, 1}, {nullptr, nullptr, 0}};
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.nthread = 1;
    params.ftype = static_cast<llama_ftype>(preset.ftype);
    params.allow_requantize = true;
    params.dry_run = true;
    params.imatrix = with_imatrix ? imatrix : nullptr;

    LogCapture log;
    if (llama_model_quantize(path.c_str(), "", &params) != 0) {
        const std::string reason = log.last_errors("llama.cpp gave no reason");
        const bool unknown = reason.find("unknown model architecture") != std::string::npos;
        throw Error(
            unknown ? ErrorKind::unsupported_model : ErrorKind::bad_file,
            fmt::format("llama.cpp can't lay out {} for this model: {}", preset.name, reason),
            path.string());
    }
    std::vector<DryRunTensor> tensors;
    for (const LlamaLogLine& line : log.lines()) {
        if (auto tensor = find_dry_run_tensor(line.text)) {
            tensors.push_back(std::move(*tensor));
        }
    }
    VOODOO_CHECK(
        !tensors.empty() && static_cast<int64_t>(tensors.size()) == tensors.front().n_tensors,
        "the dry run of llama.cpp's quantizer logged {} of {} tensors: its log format has changed",
        tensors.size(), tensors.empty() ? -1 : tensors.front().n_tensors);
    return tensors;
}

/// Size of the file that llama-quantize would write: its metadata are the source's, without the
/// split's keys.
uint64_t file_size(const std::filesystem::path& path, const Preset& preset,
                   std::span<const DryRunTensor> tensors) {
    gguf_init_params init = {};
    init.no_alloc = true;
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> source(
        gguf_init_from_file(path.c_str(), init), gguf_free);
    if (source == nullptr) {
        throw Error(ErrorKind::bad_file, "no valid GGUF file", path.string());
    }
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> target(gguf_init_empty(),
                                                                        gguf_free);
    gguf_set_kv(target.get(), source.get());
    gguf_set_val_u32(target.get(), "general.quantization_version", GGML_QNT_VERSION);
    gguf_set_val_u32(target.get(), "general.file_type", preset.ftype);
    for (const char* key : {"split.no", "split.count", "split.tensors.count"}) {
        gguf_remove_key(target.get(), key);
    }

    ggml_init_params memory = {};
    memory.mem_size = tensors.size() * ggml_tensor_overhead();
    memory.no_alloc = true;
    const std::unique_ptr<ggml_context, void (*)(ggml_context*)> shapes(ggml_init(memory),
                                                                        ggml_free);
    uint64_t data_bytes = 0;
    for (const DryRunTensor& tensor : tensors) {
        const auto& ne = tensor.shape.ne;
        ggml_tensor* shape =
            ggml_new_tensor_4d(shapes.get(), tensor.type, ne[0], ne[1], ne[2], ne[3]);
        ggml_set_name(shape, tensor.shape.name.c_str());
        gguf_add_tensor(target.get(), shape);
        data_bytes += GGML_PAD(static_cast<uint64_t>(ggml_nbytes(shape)), GGUF_DEFAULT_ALIGNMENT);
    }
    return gguf_get_meta_size(target.get()) + data_bytes;
}

}  // namespace

std::span<const Preset> presets() {
    return kPresets;
}

const Preset* find_preset(std::string_view name) {
    std::string wanted = upper(name);
    if (wanted == "Q3_K" || wanted == "Q4_K" || wanted == "Q5_K") {
        wanted += "_M";
    }
    const auto* it = std::find_if(kPresets.begin(), kPresets.end(),
                                  [&](const Preset& p) { return p.name == wanted; });
    return it == kPresets.end() ? nullptr : it;
}

const Preset& preset(std::string_view name) {
    if (const Preset* found = find_preset(name)) {
        return *found;
    }
    std::string names;
    for (const Preset& p : kPresets) {
        names += names.empty() ? "" : ", ";
        names += p.name;
    }
    throw Error(ErrorKind::usage, fmt::format("\"{}\" is no preset of llama-quantize", name), {},
                "one of " + names);
}

PresetLayout preset_layout(const std::filesystem::path& model_path, std::string_view preset_name,
                           bool with_imatrix) {
    const Preset& wanted = preset(preset_name);
    const std::vector<DryRunTensor> tensors = dry_run(model_path, wanted, with_imatrix);
    PresetLayout layout;
    for (const DryRunTensor& tensor : tensors) {
        layout.types.push_back({tensor.shape.name, tensor.type});
    }
    layout.file_size_bytes = file_size(model_path, wanted, tensors);
    return layout;
}

std::vector<TensorType> preset_types(const std::filesystem::path& model_path,
                                     std::string_view preset_name, bool with_imatrix) {
    return preset_layout(model_path, preset_name, with_imatrix).types;
}

std::vector<bool> allows_quantization(const Model& model, std::span<const TensorShape> tensors) {
    // The state keeps the pointer to the parameters.
    const llama_model_quantize_params params = llama_model_quantize_default_params();
    const std::unique_ptr<quantize_state_impl, void (*)(quantize_state_impl*)> state(
        llama_quant_init(model.handle(), &params), llama_quant_free);

    constexpr size_t kMetadataBytes = 1024;
    ggml_init_params memory = {};
    memory.mem_size = ggml_tensor_overhead() + kMetadataBytes;
    memory.no_alloc = true;
    const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(ggml_init(memory),
                                                                         ggml_free);

    std::vector<bool> allowed;
    allowed.reserve(tensors.size());
    for (const TensorShape& shape : tensors) {
        const auto& ne = shape.ne;
        const bool valid = shape.name.size() < GGML_MAX_NAME && shape.name.ends_with("weight") &&
                           std::all_of(ne.begin(), ne.end(), [](int64_t n) { return n > 0; });
        if (!valid) {
            allowed.push_back(false);
            continue;
        }
        ggml_reset(context.get());
        ggml_tensor* tensor =
            ggml_new_tensor_4d(context.get(), GGML_TYPE_F32, ne[0], ne[1], ne[2], ne[3]);
        ggml_set_name(tensor, shape.name.c_str());
        allowed.push_back(llama_quant_tensor_allows_quantization(state.get(), tensor));
    }
    return allowed;
}

uint32_t ftype_for_type(ggml_type type) {
    for (const FtypeOfType& entry : kFtypes) {
        if (entry.type == type) {
            return entry.ftype;
        }
    }
    throw Error(ErrorKind::usage,
                fmt::format("no file type stands for tensor type {}", static_cast<int>(type)));
}

}  // namespace voodoo::model
