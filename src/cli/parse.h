// From arguments, config file and environment to settings. Reads files, prints nothing.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cli/option_table.h"

namespace voodoo::cli {

/// The environment variables that the program reads, by main() only.
struct Environment {
    std::string ggml_lib;  ///< VOODOO_GGML_LIB
};

/// What the user asked for.
struct Invocation {
    std::optional<Command> command;  ///< nothing: print `text`
    std::string text;                ///< help, version or generated documentation
    pipeline::Settings settings;
    Extras extras;
};

/// `arguments` without the program's name. Option names are accepted with '-' and '_'. Later
/// sources override earlier ones: defaults, the run's record (export), the config file, the
/// environment, the command line. Throws Error(usage), with all problems of one kind at once, and
/// Error(io) for files that can't be read.
Invocation parse(std::span<const std::string> arguments, const Environment& environment);

}  // namespace voodoo::cli
