// How the program ends: exit codes and the text of an error.
#pragma once

#include <string>

#include "base/error.h"

namespace voodoo::cli {

/// 1 failed, 2 usage, 3 a size or quality gate can't be met, 70 a bug, 128 + signal if interrupted.
/// `signal` is the one that was received, 0 if none was.
int exit_code(ErrorKind kind, int signal = 0);

/// "voodoo: error: <what> [<where>]" and the hint on a line of its own; ends in a newline.
std::string error_text(const Error& error);

}  // namespace voodoo::cli
