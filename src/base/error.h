// The one exception type of Voodoo and the check for bugs.
// Error: the user, a file or the machine can cause it. VOODOO_CHECK: only a bug can cause it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace voodoo {

enum class ErrorKind {
    usage,
    io,
    bad_file,
    unsupported_op,
    unsupported_model,
    infeasible_budget,
    out_of_memory,
    device,
    interrupted,
    internal,
};

/// Name of a kind as it is printed, e.g. "bad_file".
std::string_view to_string(ErrorKind kind);

/// What went wrong, where, and what to do about it.
/// what() is "<message> [<where>]" plus " (<hint>)" for the parts that are not empty.
class Error : public std::runtime_error {
public:
    Error(ErrorKind kind, std::string message, std::string where = {}, std::string hint = {});

    ErrorKind kind() const { return kind_; }
    const std::string& message() const { return message_; }
    const std::string& where() const { return where_; }
    const std::string& hint() const { return hint_; }

private:
    ErrorKind kind_;
    std::string message_;
    std::string where_;
    std::string hint_;
};

/// Throws Error(internal) that names the source line; used by VOODOO_CHECK.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace voodoo

/// VOODOO_CHECK(condition, "format", args...): on in every build; throws Error(internal).
#define VOODOO_CHECK(condition, ...)                                                          \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            ::voodoo::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
        }                                                                                     \
    } while (false)
