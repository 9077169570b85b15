#include "pipeline/export.h"

#include "base/error.h"
#include "gguf/paths.h"
#include "gguf/writer.h"
#include "pipeline/stage_timer.h"

namespace voodoo::pipeline {
namespace {

/// "dir/name.gguf" -> "dir/name": shards add their numbers.
std::filesystem::path shard_prefix(const std::filesystem::path& output) {
    std::filesystem::path prefix = output;
    if (prefix.extension() == ".gguf") prefix.replace_extension();
    return prefix;
}

gguf::Writer make_writer(const Workbench& bench, const gguf::Metadata& metadata,
                         std::vector<gguf::PlannedTensor> tensors) {
    const Settings& settings = bench.settings();
    if (settings.split_max_bytes == 0) return {settings.output, metadata, std::move(tensors)};
    return gguf::Writer::split(shard_prefix(settings.output), metadata, std::move(tensors),
                               settings.split_max_bytes);
}

void verify_written(const std::vector<std::filesystem::path>& files,
                    const std::vector<gguf::PlannedTensor>& tensors) {
    const gguf::File written = gguf::File::open(files.front());
    VOODOO_CHECK(written.tensors().size() == tensors.size(), "{} tensors were written",
                 written.tensors().size());
    for (const gguf::PlannedTensor& tensor : tensors) {
        const gguf::TensorInfo* info = written.find_tensor(tensor.name);
        VOODOO_CHECK(info != nullptr && info->type == tensor.type && info->ne == tensor.ne,
                     "{} was not written as planned", tensor.name);
    }
}

/// Before any work: `path` is not a file of the model, and its folder is there.
void check_written_path(const Workbench& bench, const std::filesystem::path& path,
                        std::string_view what, std::string_view option) {
    for (const auto& input : bench.file().paths()) {
        if (gguf::same_file(input, path)) {
            throw Error(ErrorKind::usage, fmt::format("the {} is the model itself", what),
                        path.string(), fmt::format("choose another name for {}", option));
        }
    }
    std::filesystem::path folder = path.parent_path();
    if (folder.empty()) folder = ".";
    if (!std::filesystem::is_directory(folder)) {
        throw Error(ErrorKind::usage, fmt::format("the {}'s folder does not exist", what),
                    folder.string(), "create it first");
    }
}

}  // namespace

void check_output_path(const Workbench& bench) {
    const std::filesystem::path& output = bench.settings().output;
    if (output.empty())
        throw Error(ErrorKind::usage, "no output file is given", "", "add -o out.gguf");
    check_written_path(bench, output, "output", "-o");
}

void check_adjusted_path(const Workbench& bench) {
    const Settings& settings = bench.settings();
    if (settings.write_adjusted.empty()) return;
    check_written_path(bench, settings.write_adjusted, "adjusted source", "--write-adjusted");
    if (!settings.output.empty() && gguf::same_file(settings.output, settings.write_adjusted)) {
        throw Error(ErrorKind::usage, "the adjusted source is the output itself",
                    settings.write_adjusted.string(), "choose another name for --write-adjusted");
    }
}

std::vector<ggml_type> plan_types(const Workbench& bench, const search::Plan& plan) {
    std::vector<search::TensorInfo> infos;
    for (const Tensor& tensor : bench.tensors())
        infos.push_back({tensor.name, {tensor.info->ne.begin(), tensor.info->ne.end()}});
    search::check_plan_fits(plan, infos);
    std::vector<ggml_type> types;
    for (const Tensor& tensor : bench.tensors()) {
        const std::string& name = *plan.find_type(tensor.name);
        const auto type = quant::find_type(name);
        if (!type ||
            (*type != tensor.info->type &&
             !quant::is_legal(*type, tensor.shape.n_per_row, true, tensor.is_embedding_or_head))) {
            throw Error(ErrorKind::usage,
                        fmt::format("the plan gives {} the type {}, which is not possible",
                                    tensor.name, name));
        }
        types.push_back(*type);
    }
    return types;
}

std::vector<std::filesystem::path> write_model(Workbench& bench, const FinalWeights& weights,
                                               const search::Plan& plan, Observer& observer,
                                               const Cancellation& cancellation,
                                               std::vector<StageResult>& results) {
    check_output_path(bench);
    const std::vector<ggml_type> types = plan_types(bench, plan);
    std::map<std::string, ggml_type> by_name;
    for (size_t t = 0; t < types.size(); ++t) by_name.emplace(bench.tensors()[t].name, types[t]);
    const std::vector<gguf::PlannedTensor> tensors = bench.output_tensors(by_name);
    EncodingFacts facts;
    facts.tuned = !weights.tuned.empty();
    for (const std::string& hash : weights.adjusted_hash) facts.feedback |= !hash.empty();
    gguf::Writer writer = make_writer(
        bench, bench.output_metadata(by_name, plan.plan_hash(), plan.method, facts), tensors);
    for (const auto& path : writer.paths()) {
        for (const auto& input : bench.file().paths()) {
            if (gguf::same_file(input, path))
                throw Error(ErrorKind::usage, "a shard of the output is the model itself",
                            path.string());
        }
    }
    StageTimer timer("export", static_cast<double>(tensors.size()), "tensors", observer);
    double done = 0;
    for (const gguf::PlannedTensor& planned : tensors) {
        cancellation.check();
        const gguf::TensorInfo& source = *bench.file().find_tensor(planned.name);
        const int index = bench.find_tensor(planned.name);
        if (const auto tuned = weights.tuned.find(planned.name); tuned != weights.tuned.end()) {
            writer.write_tensor(planned.name, std::as_bytes(std::span(tuned->second)));
        } else if (index < 0) {
            writer.write_tensor(planned.name, bench.file().data(source));
        } else {
            const quant::StoredCandidate& stored = weights.tensors[static_cast<size_t>(index)];
            writer.write_tensor(planned.name, stored.bytes());
            stored.drop();
        }
        bench.file().drop(source);
        timer.progress(++done, planned.name);
    }
    writer.commit();
    verify_written(writer.paths(), tensors);
    timer.finish(results);
    return writer.paths();
}

}  // namespace voodoo::pipeline
