#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace voodoo {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};
constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"kib", 1024.0},
                                          {"mib", 1048576.0},
                                          {"gib", 1073741824.0},
                                          {"tib", 1099511627776.0},
                                          {"bytes", 1},
                                          {"byte", 1}}};

}  // namespace

uint64_t parse_size_bytes(std::string_view text) {
    const auto refuse = [&](const char* why) {
        return Error(ErrorKind::usage, fmt::format("\"{}\" is not a size: {}", text, why), "size",
                     "write a number with B, kB, MB, GB, KiB, MiB or GiB, e.g. 4.2GiB");
    };
    std::string_view rest = text;
    while (!rest.empty() && std::isspace(static_cast<unsigned char>(rest.front())))
        rest.remove_prefix(1);
    while (!rest.empty() && std::isspace(static_cast<unsigned char>(rest.back())))
        rest.remove_suffix(1);
    double number = 0;
    const auto [end, code] =
        std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    if (code != std::errc() || end == rest.data()) throw refuse("it does not begin with a number");
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    if (rest == "b") throw refuse("b means bits");
    std::string unit;
    for (const char c : rest)
        unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (unit == "b") unit.clear();
    for (const Unit& known : kUnits) {
        if (known.name != unit) continue;
        const double size = std::floor(number * known.factor);
        if (!(size >= 0) || size >= 9.2e18) throw refuse("it is out of range");
        return static_cast<uint64_t>(size);
    }
    throw refuse("unknown unit");
}

std::string format_size(uint64_t size_bytes) {
    static constexpr std::array<const char*, 5> names = {"B", "kB", "MB", "GB", "TB"};
    double value = static_cast<double>(size_bytes);
    size_t i = 0;
    while (value >= 999.5 && i + 1 < names.size()) {
        value /= 1000;
        ++i;
    }
    if (i == 0) return fmt::format("{} B", size_bytes);
    const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return fmt::format("{:.{}f} {}", value, decimals, names[i]);
}

std::string format_duration(double seconds) {
    if (!(seconds >= 0)) return "?";
    if (seconds < 60) return fmt::format("{:.1f} s", seconds);
    const auto total = static_cast<int64_t>(seconds + 0.5);
    if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
    return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

}  // namespace voodoo
