#include "cli/text_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/units.h"
#include "cli/text_table.h"

namespace voodoo::cli {
namespace {

using Align = TextTable::Align;

std::string with_error(double value, double error) {
    return fmt::format("{:.6f} +- {:.6f}", value, error);
}

std::string percent(double share) {
    return fmt::format("{:.2f} %", 100 * share);
}

std::string measured_text(const pipeline::QuantizeResult& result) {
    TextTable table({Align::left, Align::right, Align::right, Align::left});
    table.add_row({"layout", "size", "mean KL (nats per token)", ""});
    for (const auto& row : result.measured) {
        table.add_row({row.name, format_size(row.file_bytes),
                       with_error(row.mean_kl, row.standard_error),
                       row.name == result.chosen ? "<- written" : ""});
    }
    return table.text();
}

std::string tensor_table(const pipeline::Inspection& inspection) {
    TextTable table({Align::left, Align::left, Align::right, Align::right, Align::left});
    table.add_row({"tensor", "type", "shape", "size", "may become"});
    for (const pipeline::TensorRow& row : inspection.tensors) {
        table.add_row(
            {row.name, row.type, fmt::format("{}", fmt::join(row.shape, "x")),
             format_size(row.size_bytes),
             row.quantizable ? fmt::format("{} types", row.legal_types.size()) : "stays"});
    }
    return table.text();
}

/// Each set of legal types once, with the number of tensors that have it.
std::string legal_types_text(const pipeline::Inspection& inspection) {
    std::vector<std::pair<std::vector<std::string>, size_t>> sets;
    for (const pipeline::TensorRow& row : inspection.tensors) {
        if (!row.quantizable) {
            continue;
        }
        auto found = std::find_if(sets.begin(), sets.end(),
                                  [&](const auto& x) { return x.first == row.legal_types; });
        if (found == sets.end()) {
            found = sets.insert(sets.end(), {row.legal_types, 0});
        }
        ++found->second;
    }
    std::string text;
    for (const auto& [types, count] : sets) {
        text += fmt::format("{} types for {} tensors: {}\n", types.size(), count,
                            fmt::join(types, " "));
    }
    return text;
}

std::string purchase_text(const pipeline::Inspection& inspection, uint64_t size_bytes) {
    if (size_bytes < inspection.min_file_bytes) {
        return fmt::format("{} is below the smallest size that can be attained\n",
                           format_size(size_bytes));
    }
    const pipeline::PresetRow* best = nullptr;
    for (const pipeline::PresetRow& row : inspection.presets) {
        if (row.file_bytes <= size_bytes) {
            best = &row;  // they ascend in size
        }
    }
    const double bpw = inspection.n_weights == 0 ? 0.0
                                                 : 8.0 * static_cast<double>(size_bytes) /
                                                       static_cast<double>(inspection.n_weights);
    return fmt::format("{} is {:.2f} bits per weight; the largest preset within it: {}\n",
                       format_size(size_bytes), bpw,
                       best == nullptr
                           ? "none"
                           : fmt::format("{} ({})", best->name, format_size(best->file_bytes)));
}

}  // namespace

std::string stages_text(const std::vector<pipeline::StageResult>& stages) {
    TextTable table({Align::left, Align::right, Align::left});
    table.add_row({"stage", "time", ""});
    for (const pipeline::StageResult& stage : stages) {
        table.add_row({stage.stage, format_duration(stage.seconds),
                       stage.from_cache ? "taken from the run directory" : ""});
    }
    return table.text();
}

std::string quantize_text(const pipeline::QuantizeResult& result) {
    std::string text;
    for (const std::filesystem::path& file : result.files) {
        text += fmt::format("wrote {}\n", file.string());
    }
    text += fmt::format("{} bytes", result.file_bytes);
    if (result.target_bytes > 0) {
        text += fmt::format(" of {} ({})", result.target_bytes,
                            percent(static_cast<double>(result.file_bytes) /
                                    static_cast<double>(result.target_bytes)));
    }
    text += fmt::format(", {:.3f} bits per weight\n", result.bits_per_weight);
    if (!result.measured.empty()) {
        text.append("\n").append(measured_text(result));
    } else if (!result.chosen.empty()) {
        text += fmt::format("layout: {}\n", result.chosen);
    }
    if (!result.stages.empty()) {
        text.append("\n").append(stages_text(result.stages));
    }
    if (result.peak_memory_bytes > 0) {
        text += fmt::format("peak memory {}\n", format_size(result.peak_memory_bytes));
    }
    return text;
}

std::string inspection_text(const pipeline::Inspection& inspection,
                            std::optional<uint64_t> size_bytes) {
    std::string text =
        fmt::format("{} ({}), {}, {} weights\n\n", inspection.description, inspection.architecture,
                    format_size(inspection.file_bytes), inspection.n_weights);
    text += tensor_table(inspection) + "\n" + legal_types_text(inspection);
    if (!inspection.presets.empty()) {
        TextTable presets({Align::left, Align::right, Align::right});
        presets.add_row({"preset", "size", "bpw"});
        for (const pipeline::PresetRow& row : inspection.presets) {
            presets.add_row({row.name, format_size(row.file_bytes),
                             fmt::format("{:.2f}", row.bits_per_weight)});
        }
        text.append("\n").append(presets.text());
    }
    text += fmt::format("\nattainable: {} to {}\n", format_size(inspection.min_file_bytes),
                        format_size(inspection.max_file_bytes));
    return size_bytes ? text + purchase_text(inspection, *size_bytes) : text;
}

std::string doctor_text(const pipeline::DoctorReport& report) {
    TextTable table({Align::left, Align::left, Align::left});
    for (const auto& check : report.checks) {
        table.add_row({check.ok ? "ok" : "FAILED", check.name, check.detail});
    }
    return table.text();
}

std::string eval_text(const std::vector<eval::KlReport>& reports) {
    std::vector<Align> columns(reports.size() + 1, Align::right);
    columns[0] = Align::left;
    TextTable table(columns);
    const auto add = [&](std::string title,
                         const std::function<std::string(const eval::KlReport&)>& figure) {
        std::vector<std::string> row{std::move(title)};
        for (const eval::KlReport& report : reports) {
            row.push_back(figure(report));
        }
        table.add_row(std::move(row));
    };
    // Two files of the same name in different folders need their folders.
    std::set<std::string> names;
    for (const eval::KlReport& report : reports) {
        names.insert(report.path.filename().string());
    }
    const bool distinct = names.size() == reports.size();
    add("", [&](const auto& r) { return distinct ? r.path.filename().string() : r.path.string(); });
    add("size", [](const auto& r) { return format_size(r.size_bytes); });
    add("bits per weight", [](const auto& r) { return fmt::format("{:.3f}", r.bits_per_weight); });
    add("mean KL (nats)", [](const auto& r) {
        return with_error(r.statistics.mean_kl.value, r.statistics.mean_kl.error);
    });
    add("median KL", [](const auto& r) { return fmt::format("{:.6f}", r.statistics.kl.median); });
    add("90 % KL", [](const auto& r) { return fmt::format("{:.6f}", r.statistics.kl.p90); });
    add("95 % KL", [](const auto& r) { return fmt::format("{:.6f}", r.statistics.kl.p95); });
    add("99 % KL", [](const auto& r) { return fmt::format("{:.6f}", r.statistics.kl.p99); });
    add("99.9 % KL", [](const auto& r) { return fmt::format("{:.6f}", r.statistics.kl.p99_9); });
    add("maximum KL", [](const auto& r) { return fmt::format("{:.6f}", r.statistics.kl.max); });
    add("same top token", [](const auto& r) {
        return fmt::format("{:.3f} +- {:.3f} %", 100 * r.statistics.same_top.value,
                           100 * r.statistics.same_top.error);
    });
    add("perplexity",
        [](const auto& r) { return with_error(r.statistics.ppl.value, r.statistics.ppl.error); });
    add("perplexity ratio", [](const auto& r) {
        return with_error(r.statistics.ppl_ratio.value, r.statistics.ppl_ratio.error);
    });
    add("tokens per second",
        [](const auto& r) { return fmt::format("{:.1f}", r.tokens_per_second); });
    std::string text = table.text();
    if (!reports.empty()) {
        text += fmt::format("\n{} chunks of {} tokens; the reference's perplexity is {:.4f}\n",
                            reports[0].n_chunks, reports[0].n_ctx,
                            reports[0].statistics.ppl_base.value);
    }
    return text;
}

}  // namespace voodoo::cli
