#include "e2e/e2e_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "gguf/writer.h"
#include "quant/codec.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

/// A matrix of the tiny model in another type; `outlier` as in SourceOptions.
std::vector<std::byte> converted(const gguf::File& file, const gguf::TensorInfo& tensor,
                                 ggml_type type, float scale, float outlier) {
    const int64_t n = tensor.n_elements();
    std::vector<float> values(static_cast<size_t>(n));
    quant::to_float(tensor.type, file.data(tensor).data(), values.data(), n);
    for (float& value : values) value *= scale;
    if (outlier != 0.0f) values[static_cast<size_t>(tensor.ne[0])] = outlier;
    std::vector<std::byte> bytes(gguf::tensor_size_bytes(type, tensor.ne));
    ggml_quantize_chunk(type, values.data(), bytes.data(), 0, tensor.n_rows(), tensor.ne[0],
                        nullptr);
    return bytes;
}

}  // namespace

void write_source(const fs::path& path, const SourceOptions& options) {
    testing::TinyModelOptions tiny;
    tiny.seed = options.seed;
    tiny.n_embd = options.n_embd;
    tiny.n_layer = options.n_layer;
    tiny.n_expert = options.n_expert;
    tiny.n_expert_groups = options.n_expert_groups;
    fs::path draft = path;
    draft += ".draft";
    testing::write_tiny_model(draft, tiny);
    {
        const gguf::File file = gguf::File::open(draft);
        std::vector<gguf::PlannedTensor> planned;
        for (const gguf::TensorInfo& tensor : file.tensors()) {
            if (options.tied && tensor.name == "output.weight") continue;
            // Norms and routers are F32 in every file.
            const bool is_f32 = tensor.type == GGML_TYPE_F32;
            planned.push_back({tensor.name, is_f32 ? tensor.type : options.type, tensor.ne});
        }
        gguf::Writer writer(path, file.metadata(), planned);
        for (const gguf::PlannedTensor& plan : planned) {
            const gguf::TensorInfo& tensor = *file.find_tensor(plan.name);
            // The head of the tiny model is smaller than its embedding. A power of two: exact.
            const float scale = options.tied && plan.name == "token_embd.weight" ? 0.125f : 1.0f;
            const float outlier = plan.name == "blk.0.ffn_gate.weight" ? options.outlier : 0.0f;
            if (plan.type == tensor.type && scale == 1.0f && outlier == 0.0f) {
                writer.write_tensor(plan.name, file.data(tensor));
            } else {
                writer.write_tensor(plan.name, converted(file, tensor, plan.type, scale, outlier));
            }
        }
        writer.commit();
    }
    fs::remove(draft);
}

pipeline::Settings quick_settings(const fs::path& model, const fs::path& output) {
    const fs::path text = model.parent_path() / "text.txt";
    if (!fs::exists(text)) write_file_atomic(text, testing::sample_text(4096));
    pipeline::Settings settings;
    settings.model = model;
    settings.output = output;
    settings.text = {text};
    settings.n_tokens = 512;
    settings.n_valid_tokens = 128;
    settings.chunk_len = 64;
    settings.tokens_per_step = 128;
    settings.types = {"Q2_K", "Q3_K", "Q4_0", "Q4_K", "Q5_0", "Q6_K", "Q8_0"};
    settings.layout = pipeline::LayoutMethod::gates_plain;
    settings.feedback = false;
    settings.tune = pipeline::TuneMethod::none;
    settings.gates.lr = 0.3;
    settings.compare = false;
    settings.n_threads = 2;
    return settings;
}

pipeline::Settings trained_settings(const TempFolder& folder) {
    pipeline::Settings settings;
    settings.model = VOODOO_MODELS "/tiny-llama.gguf";
    settings.text = {VOODOO_MODELS "/tiny-train.txt"};
    settings.output = folder / "out.gguf";
    settings.run_dir = folder / "run";
    settings.n_tokens = 8192;
    settings.n_valid_tokens = 4096;
    settings.chunk_len = 256;
    settings.feedback = false;
    settings.tune = pipeline::TuneMethod::none;
    settings.n_threads = 2;
    return settings;
}

uint64_t size_between(const pipeline::Settings& settings, double share) {
    const pipeline::Inspection inspection = pipeline::inspect(settings);
    const auto range = static_cast<double>(inspection.max_file_bytes - inspection.min_file_bytes);
    return inspection.min_file_bytes + static_cast<uint64_t>(share * range);
}

void RecordingObserver::log(LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(level, message);
}

void RecordingObserver::stage_begin(std::string_view stage, double /*total*/,
                                    std::string_view /*unit*/) {
    {
        const std::lock_guard lock(mutex_);
        begun_.emplace_back(stage);
    }
    event(std::string(stage), "begin");
}

void RecordingObserver::stage_progress(std::string_view stage, double /*done*/,
                                       std::string_view /*note*/) {
    event(std::string(stage), "progress");
}

void RecordingObserver::stage_end(std::string_view stage, double /*seconds*/, bool /*from_cache*/) {
    event(std::string(stage), "end");
}

std::string RecordingObserver::log_text(LogLevel level) const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [line_level, line] : lines_) {
        if (line_level >= level) text += line + "\n";
    }
    return text;
}

void RecordingObserver::event(const std::string& stage, const char* what) {
    {
        const std::lock_guard lock(mutex_);
        ++n_events_;
    }
    if (on_event) on_event(stage, what);
}

pipeline::QuantizeResult quantize(const pipeline::Settings& settings, Observer& observer) {
    const Cancellation cancellation;
    return pipeline::run_quantize(settings, observer, cancellation);
}

std::map<std::string, ggml_type> tensor_types(const fs::path& path) {
    std::map<std::string, ggml_type> types;
    const gguf::File file = gguf::File::open(path);
    for (const gguf::TensorInfo& tensor : file.tensors()) types[tensor.name] = tensor.type;
    return types;
}

int expect_same_tensors(const fs::path& ours, const fs::path& theirs) {
    const gguf::File a = gguf::File::open(ours);
    const gguf::File b = gguf::File::open(theirs);
    EXPECT_EQ(a.tensors().size(), b.tensors().size());
    int n = 0;
    for (const gguf::TensorInfo& tensor : a.tensors()) {
        const gguf::TensorInfo* other = b.find_tensor(tensor.name);
        if (other == nullptr) {
            ADD_FAILURE() << tensor.name << " is missing in " << theirs;
            continue;
        }
        EXPECT_EQ(tensor.ne, other->ne) << tensor.name;
        EXPECT_STREQ(ggml_type_name(tensor.type), ggml_type_name(other->type)) << tensor.name;
        const auto x = a.data(tensor);
        const auto y = b.data(*other);
        EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end()))
            << "the bytes of " << tensor.name << " (" << ggml_type_name(tensor.type) << ") differ";
        ++n;
    }
    return n;
}

std::vector<std::string> finished_stages(const fs::path& run_dir) {
    std::vector<std::string> stages;
    if (!fs::exists(run_dir)) return stages;
    constexpr std::string_view kSuffix = ".stage.json";
    for (const auto& entry : fs::directory_iterator(run_dir)) {
        std::string name = entry.path().filename().string();
        if (!name.ends_with(kSuffix)) continue;
        stages.push_back(name.substr(0, name.size() - kSuffix.size()));
    }
    return stages;
}

std::vector<std::string> files_beginning(const fs::path& folder, const std::string& prefix) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
        std::string name = entry.path().filename().string();
        if (name.starts_with(prefix) && !entry.is_directory()) names.push_back(std::move(name));
    }
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace voodoo::e2e
