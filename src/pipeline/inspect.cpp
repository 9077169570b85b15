// `voodoo inspect` and `voodoo doctor`: what is in a model, and whether this machine can work on
// it.
#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "device/backend.h"
#include "device/memory.h"
#include "model/llama_handle.h"
#include "model/presets.h"
#include "pipeline/select.h"
#include "pipeline/stages.h"

namespace voodoo::pipeline {

Inspection inspect(const Settings& settings) {
    const Workbench bench(settings, null_observer());
    Inspection result;
    result.architecture = bench.model().architecture();
    result.description = bench.model().description();
    result.file_bytes = bench.file().total_size_bytes();
    result.n_weights = static_cast<uint64_t>(bench.n_weights());
    for (const gguf::TensorInfo& info : bench.file().tensors()) {
        TensorRow row;
        row.name = info.name;
        row.type = ggml_type_name(info.type);
        row.shape.assign(info.ne.begin(), info.ne.begin() + info.n_dims);
        row.size_bytes = info.size_bytes;
        const int index = bench.find_tensor(info.name);
        row.quantizable = index >= 0;
        if (row.quantizable) {
            const Tensor& tensor = bench.tensors()[static_cast<size_t>(index)];
            for (const ggml_type type :
                 allowed_types(bench, tensor, bench.gets_importance(tensor))) {
                row.legal_types.emplace_back(quant::type_info(type).name);
            }
        }
        result.tensors.push_back(std::move(row));
    }
    for (const model::Preset& preset : model::presets()) {
        const auto layout = try_preset_layout(bench, preset.name);
        if (!layout) continue;
        result.presets.push_back({std::string(preset.name), layout->file_size_bytes,
                                  8.0 * static_cast<double>(layout->file_size_bytes) /
                                      static_cast<double>(result.n_weights)});
    }
    std::sort(result.presets.begin(), result.presets.end(),
              [](const PresetRow& a, const PresetRow& b) { return a.file_bytes < b.file_bytes; });
    const SizeRange range = attainable_range(bench);
    result.min_file_bytes = range.min;
    result.max_file_bytes = range.max;
    return result;
}

bool DoctorReport::ok() const {
    return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.ok; });
}

namespace {

/// Runs a check whose failure is an Error.
template <class Function>
void add_check(DoctorReport& report, const std::string& name, Function&& function) {
    try {
        report.checks.push_back({name, true, function()});
    } catch (const Error& error) {
        report.checks.push_back({name, false, error.what()});
    }
}

}  // namespace

DoctorReport doctor(const Settings& settings) {
    DoctorReport report;
    report.checks.push_back({"voodoo", true, VOODOO_VERSION});
    report.checks.push_back({"llama.cpp", true, model::llama_cpp_version()});
    add_check(report, "encoder", [&] {
        return (settings.ggml_lib.empty() ? quant::Encoder()
                                          : quant::Encoder::open_library(settings.ggml_lib))
            .description();
    });
    for (const device::DeviceInfo& device : device::list_devices()) {
        report.checks.push_back(
            {"device " + device.name, true,
             fmt::format("{} ({}), {} of {} free", device.description, device.kind,
                         format_size(device.memory_free), format_size(device.memory_total))});
    }
    report.checks.push_back({"threads", true, fmt::format("{}", available_threads())});
    report.checks.push_back(
        {"memory", true, format_size(device::available_memory()) + " available"});
    if (settings.model.empty()) return report;
    add_check(report, "model", [&] {
        const Workbench bench(settings, null_observer());
        return fmt::format("{}: {} weights, {} of {} tensors can be quantized",
                           bench.model().description(), bench.n_weights(), bench.tensors().size(),
                           bench.file().tensors().size());
    });
    if (!report.ok()) return report;
    add_check(report, "differentiable", [&] {
        const Workbench bench(settings, null_observer());
        const graph::Graph graph = bench.capture(1, 16, true);
        return fmt::format("every op of {} has a rule ({} values in the graph)",
                           bench.model().architecture(), graph.size());
    });
    return report;
}

nlohmann::json to_json(const Inspection& inspection) {
    nlohmann::json json{{"architecture", inspection.architecture},
                        {"description", inspection.description},
                        {"file_bytes", inspection.file_bytes},
                        {"n_weights", inspection.n_weights},
                        {"min_file_bytes", inspection.min_file_bytes},
                        {"max_file_bytes", inspection.max_file_bytes}};
    for (const TensorRow& row : inspection.tensors) {
        json["tensors"].push_back({{"name", row.name},
                                   {"type", row.type},
                                   {"shape", row.shape},
                                   {"size_bytes", row.size_bytes},
                                   {"quantizable", row.quantizable},
                                   {"legal_types", row.legal_types}});
    }
    for (const PresetRow& row : inspection.presets) {
        json["presets"].push_back({{"name", row.name},
                                   {"file_bytes", row.file_bytes},
                                   {"bits_per_weight", row.bits_per_weight}});
    }
    return json;
}

nlohmann::json to_json(const DoctorReport& report) {
    nlohmann::json json{{"ok", report.ok()}};
    for (const auto& check : report.checks)
        json["checks"].push_back(
            {{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
    return json;
}

}  // namespace voodoo::pipeline
