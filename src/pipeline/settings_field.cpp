#include "pipeline/settings_field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace voodoo::pipeline {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view expected) {
    throw Error(ErrorKind::usage, fmt::format("\"{}\" is not {}", text, expected));
}

const std::string& single(const Values& values) {
    if (values.size() != 1) {
        throw Error(ErrorKind::usage, fmt::format("takes one value, {} were given", values.size()));
    }
    return values.front();
}

template <class T>
void parse_integer(T& x, ValueKind kind, const Values& values) {
    const std::string& text = single(values);
    const char* const end = text.data() + text.size();
    T parsed{};
    const auto [stop, code] = std::from_chars(text.data(), end, parsed);
    if (code == std::errc::result_out_of_range) {
        refuse(text, "in the range of this option");
    }
    if (code != std::errc() || stop != end) {
        if (kind == ValueKind::size) {
            refuse(text, "a size");
        }
        refuse(text, std::is_unsigned_v<T> ? "a whole number from 0 on" : "a whole number");
    }
    x = parsed;
}

template <class Enum>
struct ChoiceName {
    Enum choice;
    std::string_view name;
};
constexpr std::array<ChoiceName<search::Schedule>, 3> kSchedules = {{
    {search::Schedule::constant, "constant"},
    {search::Schedule::linear, "linear"},
    {search::Schedule::exponential, "exponential"},
}};
constexpr std::array<ChoiceName<LayoutMethod>, 3> kLayouts = {{
    {LayoutMethod::second_order, "second-order"},
    {LayoutMethod::gates, "gates"},
    {LayoutMethod::gates_plain, "gates-plain"},
}};
constexpr std::array<ChoiceName<TuneMethod>, 2> kTuneMethods = {{
    {TuneMethod::none, "none"},
    {TuneMethod::scales, "scales"},
}};

template <class Enum, size_t N>
Values format_choice(Enum x, const std::array<ChoiceName<Enum>, N>& known) {
    for (const auto& entry : known) {
        if (entry.choice == x) return {std::string(entry.name)};
    }
    VOODOO_CHECK(false, "choice {} has no name", static_cast<int>(x));
}

template <class Enum, size_t N>
void parse_choice(Enum& x, const std::string& text, const std::array<ChoiceName<Enum>, N>& known) {
    std::string names;
    for (const auto& entry : known) {
        if (entry.name == text) {
            x = entry.choice;
            return;
        }
        names += (names.empty() ? "" : ", ") + std::string(entry.name);
    }
    refuse(text, "one of " + names);
}

/// The parts of all values between commas, without the empty ones.
Values split_at_commas(const Values& values) {
    Values parts;
    for (const std::string& value : values) {
        size_t begin = 0;
        while (begin <= value.size()) {
            const size_t end = std::min(value.find(',', begin), value.size());
            if (end > begin) {
                parts.push_back(value.substr(begin, end - begin));
            }
            begin = end + 1;
        }
    }
    return parts;
}

}  // namespace

std::string_view FieldInfo::placeholder() const {
    if (!value.empty()) {
        return value;
    }
    switch (kind) {
        case ValueKind::path:
        case ValueKind::path_list:
            return "FILE";
        case ValueKind::text:
        case ValueKind::text_list:
            return "NAME";
        case ValueKind::pair_list:
            return "NAME=VALUE";
        case ValueKind::integer:
            return "N";
        case ValueKind::number:
            return "X";
        case ValueKind::size:
            return "SIZE";
        case ValueKind::on_off:
            return "on|off";
        case ValueKind::choice:
            return "WORD";
        case ValueKind::flag:
            return "";
    }
    return "";
}

std::string FieldInfo::default_text() const {
    if (!default_note.empty()) {
        return std::string(default_note);
    }
    return kind == ValueKind::flag ? std::string()
                                   : fmt::format("{}", fmt::join(default_values, ","));
}

Values format_values(const std::filesystem::path& x) {
    return x.empty() ? Values{} : Values{x.string()};
}
Values format_values(const std::string& x) {
    return x.empty() ? Values{} : Values{x};
}
Values format_values(const std::vector<std::filesystem::path>& x) {
    Values values;
    for (const std::filesystem::path& path : x) {
        values.push_back(path.string());
    }
    return values;
}
Values format_values(const std::vector<std::string>& x) {
    return x;
}
Values format_values(const std::vector<std::pair<std::string, std::string>>& x) {
    Values values;
    for (const auto& [name, value] : x) {
        values.push_back(name + "=" + value);
    }
    return values;
}
Values format_values(bool x) {
    return {x ? "on" : "off"};
}
Values format_values(int32_t x) {
    return {std::to_string(x)};
}
Values format_values(int64_t x) {
    return {std::to_string(x)};
}
Values format_values(uint64_t x) {
    return {std::to_string(x)};
}
Values format_values(double x) {
    return {fmt::format("{}", x)};  // the shortest text that reads back as the same number
}
Values format_values(search::Schedule x) {
    return format_choice(x, kSchedules);
}
Values format_values(LayoutMethod x) {
    return format_choice(x, kLayouts);
}
Values format_values(TuneMethod x) {
    return format_choice(x, kTuneMethods);
}

void parse_values(std::filesystem::path& x, ValueKind, const Values& values) {
    const std::string& text = single(values);
    if (text.empty()) {
        refuse(text, "a path");
    }
    x = text;
}
void parse_values(std::string& x, ValueKind, const Values& values) {
    x = single(values);
}
void parse_values(std::vector<std::filesystem::path>& x, ValueKind, const Values& values) {
    x.assign(values.begin(), values.end());
}
void parse_values(std::vector<std::string>& x, ValueKind, const Values& values) {
    x = split_at_commas(values);
}
void parse_values(std::vector<std::pair<std::string, std::string>>& x, ValueKind,
                  const Values& values) {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const std::string& text : split_at_commas(values)) {
        const size_t at = text.rfind('=');
        if (at == std::string::npos || at == 0 || at + 1 == text.size()) {
            refuse(text, "of the form name=type, e.g. output.weight=Q6_K");
        }
        pairs.emplace_back(text.substr(0, at), text.substr(at + 1));
    }
    x = std::move(pairs);
}
void parse_values(bool& x, ValueKind, const Values& values) {
    const std::string& text = single(values);
    if (text == "on" || text == "true" || text == "yes" || text == "1") {
        x = true;
    } else if (text == "off" || text == "false" || text == "no" || text == "0") {
        x = false;
    } else {
        refuse(text, "on or off");
    }
}
void parse_values(int32_t& x, ValueKind kind, const Values& values) {
    parse_integer(x, kind, values);
}
void parse_values(int64_t& x, ValueKind kind, const Values& values) {
    parse_integer(x, kind, values);
}
void parse_values(uint64_t& x, ValueKind kind, const Values& values) {
    if (kind == ValueKind::size) {
        try {
            x = parse_size_bytes(single(values));
        } catch (const Error& error) {  // its `where` would hide the option's name
            throw Error(ErrorKind::usage, error.message(), {}, error.hint());
        }
        return;
    }
    parse_integer(x, kind, values);
}
void parse_values(double& x, ValueKind, const Values& values) {
    const std::string& text = single(values);
    const char* const end = text.data() + text.size();
    double parsed = 0;
    const auto [stop, code] = std::from_chars(text.data(), end, parsed);
    if (code != std::errc() || stop != end || !std::isfinite(parsed)) {
        refuse(text, "a number");
    }
    x = parsed;
}
void parse_values(search::Schedule& x, ValueKind, const Values& values) {
    parse_choice(x, single(values), kSchedules);
}
void parse_values(LayoutMethod& x, ValueKind, const Values& values) {
    parse_choice(x, single(values), kLayouts);
}
void parse_values(TuneMethod& x, ValueKind, const Values& values) {
    parse_choice(x, single(values), kTuneMethods);
}

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
    std::string nearest;
    size_t least = name.size() / 3 + 2;  // further away is another word, not a slip
    for (const std::string& candidate : known) {
        // Levenshtein distance, one row at a time.
        std::vector<size_t> row(candidate.size() + 1);
        std::iota(row.begin(), row.end(), size_t{0});
        for (size_t i = 0; i < name.size(); ++i) {
            size_t diagonal = row[0];
            row[0] = i + 1;
            for (size_t j = 0; j < candidate.size(); ++j) {
                const size_t substituted = diagonal + (name[i] == candidate[j] ? 0 : 1);
                diagonal = row[j + 1];
                row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
            }
        }
        if (row.back() < least) {
            least = row.back();
            nearest = candidate;
        }
    }
    return nearest;
}

}  // namespace voodoo::pipeline
