// The options that are no settings of a run, and the commands: names, texts, examples. With the
// settings' table this is all that the command line, its help and docs/cli.md are made from.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "eval/kl.h"
#include "pipeline/settings_table.h"

namespace voodoo::cli {

using pipeline::Command;

/// What the command line can say besides Settings.
struct Extras {
    std::filesystem::path config;  ///< TOML file with settings
    std::filesystem::path plan;    ///< export: plan to use instead of the run's own
    bool json = false;             ///< results as one JSON document
    bool quiet = false;            ///< no progress, only warnings and errors
    bool verbose = false;          ///< debug messages too

    // eval
    std::vector<std::filesystem::path> models;
    std::filesystem::path reference;
    std::filesystem::path text;
    int32_t ctx_size = eval::EvalOptions{}.n_ctx;     ///< tokens in a chunk
    int32_t chunks = eval::EvalOptions{}.max_chunks;  ///< negative: all of the text
};

/// The options of Extras. Lives for ever.
std::span<const pipeline::Field<Extras>> extras_table();

/// One command.
struct CommandInfo {
    Command command;
    std::string_view name;
    std::string_view usage;  ///< what follows the name
    std::string_view summary;
    std::string_view description;
    std::vector<std::string_view> examples;
};

/// All commands in the order of the help. Lives for ever.
std::span<const CommandInfo> command_table();

const CommandInfo& command_info(Command command);

/// The options of a command: settings first, in the tables' order.
std::vector<const pipeline::FieldInfo*> options_of(Command command);

}  // namespace voodoo::cli
