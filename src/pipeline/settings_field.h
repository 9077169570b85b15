// How one option is declared: its names, unit, help and the member that holds it. The command line,
// the TOML reader and writer, the help texts and the documentation are all derived from tables of
// these; nothing is listed twice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "pipeline/settings.h"

namespace voodoo::pipeline {

/// The program's commands, named here because each option says which of them take it.
enum class Command { quantize, data, train, export_plan, eval, inspect, doctor };

using CommandSet = unsigned;
constexpr CommandSet bit(Command command) {
    return 1u << static_cast<unsigned>(command);
}

/// How an option's values are written.
enum class ValueKind {
    path,
    path_list,
    text,
    text_list,  ///< commas separate too
    pair_list,  ///< name=value; commas separate too
    integer,
    number,
    size,    ///< bytes, with a unit or without
    on_off,  ///< on, off; true, false; yes, no; 1, 0
    choice,  ///< one of a few words
    flag,    ///< present or not; command line only
};

/// True for kinds that hold any number of values.
constexpr bool is_list(ValueKind kind) {
    return kind == ValueKind::path_list || kind == ValueKind::text_list ||
           kind == ValueKind::pair_list;
}

/// An option's values as text; empty: not set.
using Values = std::vector<std::string>;

/// What does not depend on the struct that holds the option. Views are of string literals.
struct FieldInfo {
    std::string_view name{};                  ///< "max-encode-ns"
    std::vector<std::string_view> aliases{};  ///< one letter: short option
    std::string_view key{};  ///< "candidates.max_encode_ns"; empty: command line only
    CommandSet commands = 0;
    bool positional = false;  ///< may be given without its name
    ValueKind kind = ValueKind::text;
    std::string_view value{};  ///< what stands for the value in help: "FILE"; empty: by kind
    std::string_view unit{};
    std::string_view help{};
    std::string_view example{};  ///< value in the example config where there is no default, as TOML
    std::string_view default_note{};  ///< what happens without it, where its default is empty or 0
    Values default_values{};          ///< of a default-constructed struct; filled in by make_field

    bool used_by(Command command) const { return (commands & bit(command)) != 0; }
    /// Word that stands for the value in help, e.g. "FILE".
    std::string_view placeholder() const;
    /// Default as help and documentation show it, "" if there is none.
    std::string default_text() const;
};

/// An option of the struct `Target`.
template <class Target>
struct Field : FieldInfo {
    Values (*get)(const Target&) = nullptr;
    void (*set)(Target&, ValueKind, const Values&) = nullptr;

    Values values(const Target& target) const { return get(target); }
    /// Throws Error(usage) saying what is wrong with the values; without `where`, which the caller
    /// knows.
    void assign(Target& target, const Values& values) const { set(target, kind, values); }
};

// Conversions, one overload per type that an option may have. Each parse_values throws
// Error(usage).
Values format_values(const std::filesystem::path& x);
Values format_values(const std::string& x);
Values format_values(const std::vector<std::filesystem::path>& x);
Values format_values(const std::vector<std::string>& x);
Values format_values(const std::vector<std::pair<std::string, std::string>>& x);
Values format_values(bool x);
Values format_values(int32_t x);
Values format_values(int64_t x);
Values format_values(uint64_t x);
Values format_values(double x);
Values format_values(search::Schedule x);
Values format_values(LayoutMethod x);
Values format_values(TuneMethod x);
template <class T>
Values format_values(const std::optional<T>& x) {
    return x ? format_values(*x) : Values{};
}

void parse_values(std::filesystem::path& x, ValueKind kind, const Values& values);
void parse_values(std::string& x, ValueKind kind, const Values& values);
void parse_values(std::vector<std::filesystem::path>& x, ValueKind kind, const Values& values);
void parse_values(std::vector<std::string>& x, ValueKind kind, const Values& values);
void parse_values(std::vector<std::pair<std::string, std::string>>& x, ValueKind kind,
                  const Values& values);
void parse_values(bool& x, ValueKind kind, const Values& values);
void parse_values(int32_t& x, ValueKind kind, const Values& values);
void parse_values(int64_t& x, ValueKind kind, const Values& values);
void parse_values(uint64_t& x, ValueKind kind, const Values& values);
void parse_values(double& x, ValueKind kind, const Values& values);
void parse_values(search::Schedule& x, ValueKind kind, const Values& values);
void parse_values(LayoutMethod& x, ValueKind kind, const Values& values);
void parse_values(TuneMethod& x, ValueKind kind, const Values& values);
template <class T>
void parse_values(std::optional<T>& x, ValueKind kind, const Values& values) {
    T value{};
    parse_values(value, kind, values);
    x = value;
}

/// Declares an option: `Access` is a lambda without captures that returns a reference to the
/// member.
template <class Target, class Access>
Field<Target> make_field(FieldInfo info, Access) {
    static_assert(std::is_empty_v<Access>);
    Field<Target> field;
    static_cast<FieldInfo&>(field) = std::move(info);
    field.get = +[](const Target& target) { return format_values(Access{}(target)); };
    field.set = +[](Target& target, ValueKind kind, const Values& values) {
        parse_values(Access{}(target), kind, values);
    };
    field.default_values = field.get(Target{});
    return field;
}

/// The known name that is closest to `name` by edit distance, or "" if none is close.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace voodoo::pipeline
