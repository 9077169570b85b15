#include "cli/option_table.h"

#include <algorithm>

#include "base/error.h"

namespace voodoo::cli {
namespace {

using pipeline::bit;
using pipeline::CommandSet;
using pipeline::Field;
using pipeline::FieldInfo;
using pipeline::ValueKind;

constexpr CommandSet kEval = bit(Command::eval);
constexpr CommandSet kAll = bit(Command::quantize) | bit(Command::data) | bit(Command::train) |
                            bit(Command::export_plan) | kEval | bit(Command::inspect) |
                            bit(Command::doctor);

using Table = std::vector<Field<Extras>>;

template <class Access>
void add(Table& table, FieldInfo info, Access access) {
    table.push_back(pipeline::make_field<Extras>(std::move(info), access));
}

void add_eval(Table& t) {
    add(
        t,
        {.name = "model",
         .commands = kEval,
         .positional = true,
         .kind = ValueKind::path_list,
         .value = "FILE...",
         .help = "models to measure, side by side"},
        [](auto& x) -> auto& { return x.models; });
    add(
        t,
        {.name = "reference",
         .commands = kEval,
         .kind = ValueKind::path,
         .help = "the original that they are measured against"},
        [](auto& x) -> auto& { return x.reference; });
    add(
        t,
        {.name = "text",
         .commands = kEval,
         .kind = ValueKind::path,
         .help = "UTF-8 text to measure on; none that a model was calibrated on"},
        [](auto& x) -> auto& { return x.text; });
    add(
        t,
        {.name = "ctx-size",
         .commands = kEval,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "tokens in a chunk; the second half of each is scored"},
        [](auto& x) -> auto& { return x.ctx_size; });
    add(
        t,
        {.name = "chunks",
         .commands = kEval,
         .kind = ValueKind::integer,
         .unit = "chunks",
         .help = "measure on the first N chunks of the text; negative: on all"},
        [](auto& x) -> auto& { return x.chunks; });
}

Table make_table() {
    Table t;
    add_eval(t);
    add(
        t,
        {.name = "plan",
         .commands = bit(Command::export_plan),
         .kind = ValueKind::path,
         .help = "plan to export, e.g. an edited copy",
         .default_note = "plan.json of the run"},
        [](auto& x) -> auto& { return x.plan; });
    add(
        t,
        {.name = "config",
         .commands = kAll & ~kEval & ~bit(Command::export_plan),
         .kind = ValueKind::path,
         .value = "FILE.toml",
         .help =
             "take settings from this file (keys: docs/config.md); the command line overrides it"},
        [](auto& x) -> auto& { return x.config; });
    add(
        t,
        {.name = "json",
         .commands = kAll,
         .kind = ValueKind::flag,
         .help = "print the result as one JSON document"},
        [](auto& x) -> auto& { return x.json; });
    add(
        t,
        {.name = "quiet",
         .commands = kAll,
         .kind = ValueKind::flag,
         .help = "no progress; only warnings and errors on stderr"},
        [](auto& x) -> auto& { return x.quiet; });
    add(
        t,
        {.name = "verbose",
         .commands = kAll,
         .kind = ValueKind::flag,
         .help = "debug messages too"},
        [](auto& x) -> auto& { return x.verbose; });
    return t;
}

std::vector<CommandInfo> make_commands() {
    return {
        {Command::quantize,
         "quantize",
         "MODEL --size SIZE -o OUT.gguf [options]",
         "learn a layout for a size and write the model, all in one command",
         "Makes calibration data, encodes the candidates of every tensor, learns which type each "
         "tensor gets, "
         "writes a GGUF of at most the given size and measures it against llama.cpp's preset of "
         "that size. "
         "Everything is kept in the run directory; the same command continues a run that was "
         "stopped.",
         {"voodoo quantize model.gguf --size 4.2GiB -o out.gguf",
          "voodoo quantize model.gguf --bpw 3.1 -o out.gguf --text wiki.txt code.txt",
          "voodoo quantize model.gguf --preset Q4_K_M -o out.gguf",
          "voodoo quantize model.gguf --size 95MB -o out.gguf --types Q3_K,Q4_K,Q6_K --tensor "
          "output.weight=Q6_K",
          "voodoo quantize --config settings.toml --size 3GiB --json"}},
        {Command::data,
         "data",
         "--model MODEL --output-dir DIR [options]",
         "calibration tokens, importance matrix and teacher states",
         "The first stage of quantize by itself. What it leaves in the run directory serves every "
         "size.",
         {"voodoo data --model model.gguf --output-dir run",
          "voodoo data --model model.gguf --output-dir run --text wiki.txt --tokens 98304"}},
        {Command::train,
         "train",
         "--config FILE.toml [options]",
         "learn the layout; leaves plan.json and recipe.txt in the run directory",
         "The stages of quantize up to the plan. recipe.txt is the plan as llama-quantize "
         "--tensor-type-file reads it.",
         {"voodoo train --config settings.toml",
          "voodoo train model.gguf --size 4.2GiB --run run --lambda 2 --tau-end 0.05"}},
        {Command::export_plan,
         "export",
         "--run DIR -o OUT.gguf [options]",
         "write the model of a plan",
         "Takes the model and all settings from the run's own record, unless the command line says "
         "otherwise.",
         {"voodoo export --run run -o out.gguf",
          "voodoo export --run run -o out.gguf --plan edited.json --split-max-size 2GB"}},
        {Command::eval,
         "eval",
         "--model FILE... --reference FILE --text FILE [options]",
         "KL divergence, same top token, perplexity, size and speed against the original",
         "The definitions are those of llama-perplexity --kl-divergence, without its logits file.",
         {"voodoo eval --model out.gguf --reference model.gguf --text valid.txt",
          "voodoo eval --model a.gguf b.gguf --reference model.gguf --text valid.txt --chunks 32 "
          "--json"}},
        {Command::inspect,
         "inspect",
         "MODEL [options]",
         "tensors, types and sizes, and what a size could buy",
         "Lists the tensors with the types that each may get, llama.cpp's presets with their "
         "sizes, and the range "
         "of sizes that can be attained.",
         {"voodoo inspect model.gguf", "voodoo inspect model.gguf --size 4.2GiB --json"}},
        {Command::doctor,
         "doctor",
         "[--model MODEL] [options]",
         "devices, memory, llama.cpp's version; whether a model can be differentiated",
         "Exits with 0 only if every check is passed.",
         {"voodoo doctor", "voodoo doctor --model model.gguf"}},
    };
}

}  // namespace

std::span<const Field<Extras>> extras_table() {
    static const Table table = make_table();
    return table;
}

std::span<const CommandInfo> command_table() {
    static const std::vector<CommandInfo> table = make_commands();
    return table;
}

const CommandInfo& command_info(Command command) {
    const auto table = command_table();
    const auto found = std::find_if(table.begin(), table.end(), [&](const CommandInfo& info) {
        return info.command == command;
    });
    VOODOO_CHECK(found != table.end(), "command {} has no entry", static_cast<int>(command));
    return *found;
}

std::vector<const FieldInfo*> options_of(Command command) {
    std::vector<const FieldInfo*> options;
    const auto add_used = [&](const auto& table) {
        for (const auto& field : table) {
            if (field.used_by(command)) {
                options.push_back(&field);
            }
        }
    };
    add_used(pipeline::settings_table());
    add_used(extras_table());
    return options;
}

}  // namespace voodoo::cli
