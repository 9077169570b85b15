#include "cli/exit_code.h"

#include <fmt/format.h>

namespace voodoo::cli {

int exit_code(ErrorKind kind, int signal) {
    switch (kind) {
        case ErrorKind::usage:
            return 2;
        case ErrorKind::infeasible_budget:
            return 3;
        case ErrorKind::internal:
            return 70;
        case ErrorKind::interrupted:
            return signal > 0 ? 128 + signal : 1;
        case ErrorKind::io:
        case ErrorKind::bad_file:
        case ErrorKind::unsupported_op:
        case ErrorKind::unsupported_model:
        case ErrorKind::out_of_memory:
        case ErrorKind::device:
            return 1;
    }
    return 70;
}

std::string error_text(const Error& error) {
    std::string text = fmt::format("voodoo: error: {}", error.message());
    if (!error.where().empty()) {
        text += fmt::format(" [{}]", error.where());
    }
    text += "\n";
    if (!error.hint().empty()) {
        text += fmt::format("  hint: {}\n", error.hint());
    }
    return text;
}

}  // namespace voodoo::cli
