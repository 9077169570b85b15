#include "cli/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "cli/help.h"
#include "pipeline/settings_toml.h"

namespace voodoo::cli {
namespace {

using pipeline::Field;
using pipeline::FieldInfo;
using pipeline::Settings;
using pipeline::ValueKind;
using pipeline::Values;

/// "--max_encode_ns=5" -> "--max-encode-ns=5"; what follows "--" is left alone.
std::vector<std::string> with_dashes(std::span<const std::string> arguments) {
    std::vector<std::string> result(arguments.begin(), arguments.end());
    for (std::string& argument : result) {
        if (argument == "--") {
            break;
        }
        if (argument.starts_with("--")) {
            const auto end = argument.begin() + static_cast<std::ptrdiff_t>(
                                                    std::min(argument.find('='), argument.size()));
            std::replace(argument.begin(), end, '_', '-');
        }
    }
    return result;
}

std::string cli11_names(const FieldInfo& field) {
    std::string names = fmt::format("--{}", field.name);
    for (const std::string_view alias : field.aliases) {
        names += fmt::format(",{}{}", alias.size() == 1 ? "-" : "--", alias);
    }
    return field.positional ? fmt::format("{},{}", field.name, names) : names;
}

/// Registers a command's options with CLI11 and hands their values over after parsing.
class CommandParser {
public:
    CommandParser(CLI::App& app, const CommandInfo& info)
        : app_(app.add_subcommand(std::string(info.name), std::string(info.summary))), info_(info) {
        app_->set_help_flag();
        help_ = app_->add_flag("-h,--help");
        app_->allow_extras();  // reported by check_extras, with suggestions
        for (const FieldInfo* field : options_of(info.command)) {
            options_.emplace_back(field, add(*field));
        }
    }

    bool used() const { return app_->parsed(); }
    bool help_wanted() const { return help_->count() > 0; }
    Command command() const { return info_.command; }

    /// Throws Error(usage) naming every argument that no option took.
    void check_extras() const {
        std::vector<std::string> known;
        for (const auto& [field, option] : options_) {
            known.push_back(fmt::format("--{}", field->name));
        }
        std::vector<std::string> problems;
        for (const std::string& extra : app_->remaining(true)) {
            if (!extra.starts_with('-')) {
                problems.push_back(fmt::format("unexpected argument \"{}\"", extra));
                continue;
            }
            const std::string name = extra.substr(0, extra.find('='));
            const std::string nearest = pipeline::nearest_name(name, known);
            problems.push_back(nearest.empty() ? fmt::format("unknown option {}", name)
                                               : fmt::format("unknown option {}, did you mean {}?",
                                                             name, nearest));
        }
        throw_problems(problems);
    }

    /// Sets in `target` what the command line has of its table.
    template <class Target>
    void apply(Target& target, std::span<const Field<Target>> table) const {
        std::vector<std::string> problems;
        std::string hint;
        for (const Field<Target>& field : table) {
            const CLI::Option* option = find(&field);
            if (option == nullptr || option->count() == 0) {
                continue;
            }
            try {
                field.assign(target, field.kind == ValueKind::flag ? Values{"on"}
                                                                   : option->reduced_results());
            } catch (const Error& error) {
                problems.push_back(fmt::format("--{}: {}", field.name, error.message()));
                hint = error.hint();
            }
        }
        throw_problems(problems, hint);
    }

    bool given(std::string_view name) const {
        return std::any_of(options_.begin(), options_.end(), [&](const auto& entry) {
            return entry.first->name == name && entry.second->count() > 0;
        });
    }

    void throw_problems(const std::vector<std::string>& problems,
                        const std::string& hint = {}) const {
        if (!problems.empty()) {
            throw Error(ErrorKind::usage, fmt::format("{}", fmt::join(problems, "; ")), {},
                        hint.empty() ? fmt::format("voodoo {} --help", info_.name) : hint);
        }
    }

private:
    CLI::Option* add(const FieldInfo& field) {
        if (field.kind == ValueKind::flag) {
            return app_->add_flag(cli11_names(field));
        }
        // CLI11 keeps the texts; apply() converts them.
        CLI::Option* option =
            app_->add_option(cli11_names(field), [](const CLI::results_t&) { return true; });
        if (field.kind == ValueKind::path_list) {
            option->expected(1, -1)->allow_extra_args();
        } else if (is_list(field.kind)) {
            option->expected(1, -1)->allow_extra_args(false);
        } else {
            option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
        }
        return option;
    }

    const CLI::Option* find(const FieldInfo* field) const {
        for (const auto& [known, option] : options_) {
            if (known == field) {
                return option;
            }
        }
        return nullptr;
    }

    CLI::App* app_;
    const CommandInfo& info_;
    CLI::Option* help_ = nullptr;
    std::vector<std::pair<const FieldInfo*, CLI::Option*>> options_;
};

void apply_file(Settings& settings, const std::filesystem::path& path) {
    apply_toml(settings, read_file(path), path.string());
}

/// A target on the command line takes the place of the config's, of whatever kind.
void replace_target(const CommandParser& parser, Settings& settings) {
    const bool size = parser.given("size"), bpw = parser.given("bpw");
    const bool preset = parser.given("preset"), like = parser.given("like");
    if (!size && !bpw && !preset && !like) return;
    if (!size) settings.size_bytes.reset();
    if (!bpw) settings.bpw.reset();
    if (!preset) settings.preset.clear();
    if (!like) settings.like.clear();
}

/// The run's own record is the ground that export stands on.
void apply_run_record(const Settings& from_command_line, Settings& settings) {
    if (from_command_line.run_dir.empty()) {
        throw Error(ErrorKind::usage, "export needs --run DIR", {},
                    "name the run directory of an earlier train or quantize");
    }
    const std::filesystem::path record = from_command_line.run_dir / "settings.toml";
    if (!std::filesystem::exists(record)) {
        throw Error(ErrorKind::usage, "this is not the directory of a run: it has no settings.toml",
                    from_command_line.run_dir.string(),
                    "run voodoo train or voodoo quantize first");
    }
    apply_file(settings, record);
}

std::filesystem::path default_run_dir(const Settings& settings) {
    std::filesystem::path base = settings.output.empty() ? settings.model : settings.output;
    base += ".run";
    return base;
}

void require_all(const CommandParser& parser, const Settings& settings, const Extras& extras) {
    const Command command = parser.command();
    const bool learns = command == Command::quantize || command == Command::train;
    std::vector<std::string> problems;
    std::string hint;
    const auto require = [&](bool good, std::string_view problem, std::string_view what_to_do) {
        if (!good) {
            problems.emplace_back(problem);
            hint += (hint.empty() ? "" : "; ") + std::string(what_to_do);
        }
    };
    if (command == Command::eval) {
        require(!extras.models.empty(), "no model to measure", "--model FILE...");
        require(!extras.reference.empty(), "no reference",
                "--reference FILE names the original model");
        require(!extras.text.empty(), "no text to measure on",
                "--text FILE names a UTF-8 text that no model was calibrated on");
    } else if (command != Command::doctor) {
        require(
            !settings.model.empty(), "no model is given",
            "name the model first, before options that take several values, or with --model FILE");
    }
    if (learns) {
        require(settings.n_targets() > 0, "no size is given",
                "--size 4.2GiB, --bpw 3.1, --preset Q4_K_M or --like FILE");
    }
    require(settings.n_targets() <= 1, pipeline::kTwoTargets, "give one of them");
    if (command == Command::quantize || command == Command::export_plan) {
        require(!settings.output.empty(), "no output is given", "-o OUT.gguf");
    }
    parser.throw_problems(problems, hint);
}

Invocation build(const CommandParser& parser, const Environment& environment) {
    Invocation result;
    result.command = parser.command();
    parser.check_extras();
    parser.apply(result.extras, extras_table());

    Settings from_command_line;
    parser.apply(from_command_line, pipeline::settings_table());
    Settings& settings = result.settings;
    if (parser.command() == Command::export_plan) {
        apply_run_record(from_command_line, settings);
    }
    if (!result.extras.config.empty()) {
        apply_file(settings, result.extras.config);
    }
    if (!environment.ggml_lib.empty()) {
        settings.ggml_lib = environment.ggml_lib;
    }
    replace_target(parser, settings);
    parser.apply(settings, pipeline::settings_table());
    require_all(parser, settings, result.extras);
    if (settings.run_dir.empty() && !settings.model.empty()) {
        settings.run_dir = default_run_dir(settings);
    }
    return result;
}

std::string known_commands() {
    std::vector<std::string_view> names;
    for (const CommandInfo& info : command_table()) {
        names.push_back(info.name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

[[noreturn]] void refuse_command(const std::string& name) {
    std::vector<std::string> known;
    for (const CommandInfo& info : command_table()) {
        known.emplace_back(info.name);
    }
    const std::string nearest = pipeline::nearest_name(name, known);
    throw Error(ErrorKind::usage,
                nearest.empty()
                    ? fmt::format("unknown command \"{}\"", name)
                    : fmt::format("unknown command \"{}\", did you mean {}?", name, nearest),
                {}, fmt::format("commands: {}", known_commands()));
}

/// voodoo help [COMMAND | --markdown]
std::string help_command(std::span<const std::string> arguments) {
    if (arguments.empty()) {
        return program_help();
    }
    if (arguments[0] == "--markdown") {
        return generated_document("cli");
    }
    for (const CommandInfo& info : command_table()) {
        if (info.name == arguments[0]) {
            return command_help(info.command);
        }
    }
    refuse_command(arguments[0]);
}

/// Requests that are answered by a text and need no command.
std::optional<std::string> text_request(std::span<const std::string> arguments) {
    const std::string& first = arguments[0];
    if (first == "--help" || first == "-h") {
        return program_help();
    }
    if (first == "--version" || first == "-V") {
        return version_line();
    }
    if (first == "help") {
        return help_command(arguments.subspan(1));
    }
    if (first == "--print-docs") {
        return generated_document(arguments.size() > 1 ? arguments[1] : "");
    }
    return std::nullopt;
}

}  // namespace

Invocation parse(std::span<const std::string> arguments, const Environment& environment) {
    const std::vector<std::string> normalized = with_dashes(arguments);
    if (normalized.empty()) {
        throw Error(ErrorKind::usage, "no command is given", {},
                    fmt::format("commands: {}", known_commands()));
    }
    Invocation result;
    if (std::optional<std::string> text = text_request(normalized)) {
        result.text = *std::move(text);
        return result;
    }
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    std::vector<CommandParser> parsers;
    parsers.reserve(command_table().size());
    for (const CommandInfo& info : command_table()) {
        parsers.emplace_back(app, info);
    }
    try {
        // CLI11 takes the arguments from the back.
        app.parse(std::vector<std::string>(normalized.rbegin(), normalized.rend()));
    } catch (const CLI::ParseError& error) {
        throw Error(ErrorKind::usage, error.what(), {},
                    fmt::format("voodoo {} --help", normalized[0]));
    }
    for (const CommandParser& parser : parsers) {
        if (!parser.used()) {
            continue;
        }
        if (parser.help_wanted()) {
            result.text = command_help(parser.command());
            return result;
        }
        return build(parser, environment);
    }
    refuse_command(normalized[0]);
}

}  // namespace voodoo::cli
