#include "cli/help.h"

#include <fmt/format.h>

#include "base/error.h"
#include "pipeline/settings_toml.h"

namespace voodoo::cli {
namespace {

using pipeline::FieldInfo;
using pipeline::ValueKind;

constexpr size_t kWidth = 100;
constexpr size_t kOptionColumn = 30;

/// Words of `text` in lines of at most kWidth columns, each line indented.
std::string wrapped(std::string_view text, size_t indent) {
    const std::string margin(indent, ' ');
    std::string result, line = margin;
    while (!text.empty()) {
        const size_t end = std::min(text.find(' '), text.size());
        const std::string_view word = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.size() > indent && line.size() + 1 + word.size() > kWidth) {
            result += line + "\n";
            line = margin;
        }
        line.append(line.size() > indent ? " " : "").append(word);
    }
    return result + line + "\n";
}

/// "-o, --output FILE"
std::string spelling(const FieldInfo& field) {
    std::string names;
    for (const std::string_view alias : field.aliases) {
        if (alias.size() == 1) {
            names += fmt::format("-{}, ", alias);
        }
    }
    names += fmt::format("--{}", field.name);
    const std::string_view value = field.placeholder();
    return value.empty() ? names : fmt::format("{} {}", names, value);
}

/// Help with unit and default.
std::string full_help(const FieldInfo& field) {
    std::string text(field.help);
    if (!field.unit.empty()) {
        text += fmt::format(" [{}]", field.unit);
    }
    const std::string value = field.default_text();
    return value.empty() ? text : fmt::format("{} (default: {})", text, value);
}

/// The heading under which help lists an option.
std::string_view group_title(const FieldInfo& field) {
    for (const pipeline::SettingsSection& section : pipeline::settings_sections()) {
        if (!field.key.empty() && section.name == pipeline::section_of(field.key)) {
            return section.title;
        }
    }
    return "Options";
}

std::string exit_codes() {
    return "0 done, 1 failed, 2 wrong usage, 3 the size or a quality gate can't be met, 70 a bug, "
           "128 + n ended by "
           "signal n";
}

/// `text` with each `special` character after a backslash.
std::string escaped(std::string_view text, std::string_view special) {
    std::string result;
    for (const char c : text) {
        result += special.find(c) == std::string_view::npos ? "" : "\\";
        result += c;
    }
    return result;
}

// The pipe separates columns of a Markdown table, and outside of code < begins a tag.
std::string cell(std::string_view text) {
    return escaped(text, "|<");
}

std::string code_cell(std::string_view text) {
    return text.empty() ? std::string() : fmt::format("`{}`", escaped(text, "|"));
}

/// Defaults are code, notes about them are words.
std::string default_cell(const FieldInfo& field) {
    return field.default_note.empty() ? code_cell(field.default_text()) : cell(field.default_note);
}

std::string option_cell(const FieldInfo& field) {
    std::string text = code_cell(spelling(field));
    for (const std::string_view alias : field.aliases) {
        if (alias.size() > 1) {
            text += fmt::format(", `--{}`", alias);
        }
    }
    return text;
}

std::string command_markdown(const CommandInfo& info) {
    std::string text = fmt::format("\n## voodoo {}\n\n", info.name);
    text += fmt::format("    voodoo {} {}\n\n{}\n\nExamples:\n\n", info.name, info.usage,
                        info.description);
    for (const std::string_view example : info.examples) {
        text += fmt::format("    {}\n", example);
    }
    text += "\n| option | meaning | unit | default |\n|---|---|---|---|\n";
    for (const FieldInfo* field : options_of(info.command)) {
        text += fmt::format("| {} | {} | {} | {} |\n", option_cell(*field), cell(field->help),
                            cell(field->unit), default_cell(*field));
    }
    return text;
}

std::string cli_markdown() {
    std::string text =
        "# Command line\n\n"
        "<!-- Generated from the option table by `voodoo --print-docs cli`; don't edit. -->\n\n"
        "| command | does |\n|---|---|\n";
    for (const CommandInfo& info : command_table()) {
        text += fmt::format("| [`{0}`](#voodoo-{0}) | {1} |\n", info.name, info.summary);
    }
    text += fmt::format(
        "\nOptions may be spelled with `-` or `_` (`--max-encode-ns`, `--max_encode_ns`). Options "
        "that take several\n"
        "values take all arguments up to the next option, so name the model before them. Results "
        "go to stdout,\n"
        "progress and messages to stderr. `voodoo --version` prints the version, `voodoo COMMAND "
        "--help` a command's "
        "options.\n\n"
        "Interrupt (Ctrl-C) or terminate a run and it stops at the next safe point; the same "
        "command continues it. A\n"
        "second signal ends it at once, which costs no finished stage.\n\n"
        "Exit codes: {}.\n\n"
        "Environment: `VOODOO_GGML_LIB` is the same as `--ggml-lib`, which overrides it.\n",
        exit_codes());
    for (const CommandInfo& info : command_table()) {
        text += command_markdown(info);
    }
    return text;
}

std::string config_markdown() {
    std::string text =
        "# Configuration file\n\n"
        "<!-- Generated from the option table by `voodoo --print-docs config`; don't edit. -->\n\n"
        "A TOML file for `--config`. Every key is also an option of the command line, which "
        "overrides the file; what\n"
        "neither has keeps its default. One file serves all commands; each reads what it needs. "
        "Unknown keys are\n"
        "errors. Relative paths start at the working directory. Sizes are whole numbers of bytes "
        "or strings such as\n"
        "`\"4.2GiB\"`. [configs/default.toml](../configs/default.toml) has every key with its "
        "default. A run keeps its\n"
        "settings in the same form, as `settings.toml` in the run directory.\n";
    for (const pipeline::SettingsSection& section : pipeline::settings_sections()) {
        text += fmt::format(
            "\n## [{}]\n\n{}.\n\n| key | meaning | unit | default | option "
            "|\n|---|---|---|---|---|\n",
            section.name, section.title);
        for (const auto& field : pipeline::settings_table()) {
            if (pipeline::section_of(field.key) == section.name) {
                text += fmt::format("| `{}` | {} | {} | {} | `--{}` |\n",
                                    field.key.substr(section.name.size() + 1), cell(field.help),
                                    cell(field.unit), default_cell(field), field.name);
            }
        }
    }
    return text;
}

}  // namespace

std::string version_line() {
    return fmt::format("voodoo {}\n", VOODOO_VERSION);
}

std::string program_help() {
    std::string text =
        "voodoo: learns which quantization type each tensor of a GGUF model gets\n\n"
        "Usage: voodoo COMMAND [options]\n\nCommands:\n";
    for (const CommandInfo& info : command_table()) {
        text += fmt::format("  {:<10} {}\n", info.name, info.summary);
    }
    text += "\nExample:\n";
    text += fmt::format("  {}\n", command_table().front().examples.front());
    text +=
        "\nvoodoo COMMAND --help lists a command's options; voodoo --version prints the version.\n";
    text += wrapped("Exit codes: " + exit_codes() + ".", 0);
    return text;
}

std::string command_help(Command command) {
    const CommandInfo& info = command_info(command);
    std::string text = fmt::format("Usage: voodoo {} {}\n\n{}", info.name, info.usage,
                                   wrapped(info.description, 0));
    text += "\nExamples:\n";
    for (const std::string_view example : info.examples) {
        text += fmt::format("  {}\n", example);
    }
    std::string_view group;
    for (const FieldInfo* field : options_of(command)) {
        if (group_title(*field) != group) {
            group = group_title(*field);
            text += fmt::format("\n{}:\n", group);
        }
        const std::string left = "  " + spelling(*field);
        std::string right = wrapped(full_help(*field), kOptionColumn);
        if (left.size() + 1 < kOptionColumn) {
            right.replace(0, left.size(), left);
            text += right;
        } else {
            text += left + "\n" + right;
        }
    }
    return text;
}

std::string generated_document(std::string_view name) {
    if (name == "cli") {
        return cli_markdown();
    }
    if (name == "config") {
        return config_markdown();
    }
    if (name == "toml") {
        return pipeline::example_toml();
    }
    throw Error(ErrorKind::usage, fmt::format("no generated document is called \"{}\"", name),
                "--print-docs", "cli, config or toml");
}

}  // namespace voodoo::cli
