#include "base/error.h"

namespace voodoo {

std::string_view to_string(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::usage:
            return "usage";
        case ErrorKind::io:
            return "io";
        case ErrorKind::bad_file:
            return "bad_file";
        case ErrorKind::unsupported_op:
            return "unsupported_op";
        case ErrorKind::unsupported_model:
            return "unsupported_model";
        case ErrorKind::infeasible_budget:
            return "infeasible_budget";
        case ErrorKind::out_of_memory:
            return "out_of_memory";
        case ErrorKind::device:
            return "device";
        case ErrorKind::interrupted:
            return "interrupted";
        case ErrorKind::internal:
            return "internal";
    }
    return "internal";
}

static std::string compose(const std::string& message, const std::string& where,
                           const std::string& hint) {
    std::string text = message;
    if (!where.empty()) text += " [" + where + "]";
    if (!hint.empty()) text += " (" + hint + ")";
    return text;
}

Error::Error(ErrorKind kind, std::string message, std::string where, std::string hint)
    : std::runtime_error(compose(message, where, hint)),
      kind_(kind),
      message_(std::move(message)),
      where_(std::move(where)),
      hint_(std::move(hint)) {}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
    throw Error(ErrorKind::internal, fmt::format("check failed: {}: {}", condition, message),
                fmt::format("{}:{}", file, line), "this is a bug in voodoo, please report it");
}

}  // namespace voodoo
