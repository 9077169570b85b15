// Texts made from the option table: help on the terminal, docs/cli.md, docs/config.md,
// configs/default.toml.
#pragma once

#include <string>
#include <string_view>

#include "cli/option_table.h"

namespace voodoo::cli {

/// "voodoo 0.1.0" and a newline.
std::string version_line();

/// Help of the program and of one command, for a terminal, at most 100 columns where words allow
/// it.
std::string program_help();
std::string command_help(Command command);

/// "cli" -> docs/cli.md, "config" -> docs/config.md, "toml" -> configs/default.toml. Throws
/// Error(usage) for another name.
std::string generated_document(std::string_view name);

}  // namespace voodoo::cli
