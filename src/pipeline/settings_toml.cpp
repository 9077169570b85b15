#include "pipeline/settings_toml.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <charconv>

#include "base/error.h"
#include "pipeline/settings_table.h"

namespace voodoo::pipeline {
namespace {

std::string toml_string(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        const auto code = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            result += '\\';
            result += c;
        } else if (code < 0x20 || code == 0x7f) {
            result += fmt::format("\\u{:04X}", code);
        } else {
            result += c;
        }
    }
    return result + "\"";
}

std::string toml_value(ValueKind kind, const Values& values) {
    if (is_list(kind)) {
        std::string list;
        for (const std::string& value : values) {
            list += (list.empty() ? "" : ", ") + toml_string(value);
        }
        return "[" + list + "]";
    }
    const std::string& value = values.front();
    switch (kind) {
        case ValueKind::integer:
        case ValueKind::size: {
            // TOML's integers are signed; a larger one is written as a string, which the reader
            // takes too.
            int64_t fits = 0;
            const auto code = std::from_chars(value.data(), value.data() + value.size(), fits).ec;
            return code == std::errc() ? value : toml_string(value);
        }
        case ValueKind::number:
            return value;
        case ValueKind::on_off:
            return value == "on" ? "true" : "false";
        default:
            return toml_string(value);
    }
}

std::string_view expected(ValueKind kind) {
    switch (kind) {
        case ValueKind::integer:
            return "a whole number";
        case ValueKind::number:
            return "a number";
        case ValueKind::size:
            return "a number of bytes or a string such as \"4.2GiB\"";
        case ValueKind::on_off:
            return "true or false";
        case ValueKind::path_list:
        case ValueKind::text_list:
        case ValueKind::pair_list:
            return "a string or an array of strings";
        default:
            return "a string";
    }
}

/// One TOML value as text; throws Error(usage) if its type does not suit the kind.
std::string scalar_text(ValueKind kind, const toml::node& node) {
    const bool numeric =
        kind == ValueKind::integer || kind == ValueKind::number || kind == ValueKind::size;
    if (const auto* text = node.as_string()) {
        return text->get();
    }
    if (const auto* integer = node.as_integer(); integer && numeric) {
        return std::to_string(integer->get());
    }
    if (const auto* real = node.as_floating_point(); real && kind == ValueKind::number) {
        return fmt::format("{}", real->get());
    }
    if (const auto* boolean = node.as_boolean(); boolean && kind == ValueKind::on_off) {
        return boolean->get() ? "on" : "off";
    }
    throw Error(ErrorKind::usage, fmt::format("must be {}", expected(kind)));
}

Values node_values(ValueKind kind, const toml::node& node) {
    Values values;
    if (const toml::array* array = node.as_array(); array && is_list(kind)) {
        for (const toml::node& element : *array) {
            values.push_back(scalar_text(kind, element));
        }
    } else {
        values.push_back(scalar_text(kind, node));
    }
    return values;
}

/// Collects what is wrong, so that the user sees all of it at once.
class Reader {
public:
    explicit Reader(Settings& settings) : settings_(settings) {}

    void read(const toml::table& document) {
        for (const auto& [section, node] : document) {
            const std::string name(section.str());
            if (const toml::table* table = node.as_table()) {
                for (const auto& [key, value] : *table) {
                    read_value(name + "." + std::string(key.str()), value);
                }
            } else {
                unknown(name, node);
            }
        }
    }
    const std::vector<std::string>& problems() const { return problems_; }

private:
    void read_value(const std::string& key, const toml::node& node) {
        for (const Field<Settings>& field : settings_table()) {
            if (field.key == key) {
                try {
                    field.assign(settings_, node_values(field.kind, node));
                } catch (const Error& error) {
                    report(key, node, error.message());
                }
                return;
            }
        }
        unknown(key, node);
    }

    void unknown(const std::string& key, const toml::node& node) {
        // A key without its section is the commonest slip: compare with the last part too.
        std::vector<std::string> known;
        for (const Field<Settings>& field : settings_table()) {
            if (field.key.substr(field.key.find('.') + 1) == key) {
                report(key, node, fmt::format("unknown key, did you mean {}?", field.key));
                return;
            }
            known.emplace_back(field.key);
        }
        const std::string nearest = nearest_name(key, known);
        report(key, node,
               nearest.empty() ? "unknown key"
                               : fmt::format("unknown key, did you mean {}?", nearest));
    }

    void report(const std::string& key, const toml::node& node, std::string_view what) {
        problems_.push_back(fmt::format("line {}: {}: {}", node.source().begin.line, key, what));
    }

    Settings& settings_;
    std::vector<std::string> problems_;
};

toml::table parse(std::string_view text, std::string_view where) {
    try {
        return toml::parse(text);
    } catch (const toml::parse_error& error) {
        throw Error(ErrorKind::usage, fmt::format("not valid TOML: {}", error.description()),
                    fmt::format("{}:{}", where, error.source().begin.line));
    }
}

}  // namespace

std::string settings_to_toml(const Settings& settings) {
    std::string text;
    std::string_view section;
    for (const Field<Settings>& field : settings_table()) {
        const Values values = field.values(settings);
        if (values.empty()) {
            continue;
        }
        if (section != section_of(field.key)) {
            text += section.empty() ? "" : "\n";
            section = section_of(field.key);
            text += fmt::format("[{}]\n", section);
        }
        text += fmt::format("{} = {}\n", field.key.substr(section.size() + 1),
                            toml_value(field.kind, values));
    }
    return text;
}

void apply_toml(Settings& settings, std::string_view text, std::string_view where) {
    Settings changed = settings;
    Reader reader(changed);
    reader.read(parse(text, where));
    if (!reader.problems().empty()) {
        std::string message = "the configuration has errors:";
        for (const std::string& problem : reader.problems()) {
            message += "\n  " + problem;
        }
        throw Error(ErrorKind::usage, message, std::string(where), "docs/config.md lists all keys");
    }
    settings = std::move(changed);
}

Settings settings_from_toml(std::string_view text, std::string_view where) {
    Settings settings;
    apply_toml(settings, text, where);
    return settings;
}

std::string example_toml() {
    std::string text =
        "# All settings with their defaults. Generated from the option table: `voodoo --print-docs "
        "toml`.\n"
        "# Use: voodoo quantize --config FILE.toml; the command line overrides the file.\n"
        "# Keys that begin with # have no default. Relative paths start at the working "
        "directory.\n";
    for (const SettingsSection& section : settings_sections()) {
        text += fmt::format("\n# {}\n[{}]\n", section.title, section.name);
        for (const Field<Settings>& field : settings_table()) {
            if (section_of(field.key) != section.name) {
                continue;
            }
            const std::string_view key = field.key.substr(section.name.size() + 1);
            text += fmt::format("# {}", field.help);
            text += field.unit.empty() ? "" : fmt::format(" [{}]", field.unit);
            text +=
                field.default_note.empty() ? "" : fmt::format("; default: {}", field.default_note);
            text +=
                field.default_values.empty()
                    ? fmt::format("\n# {} = {}\n", key, field.example)
                    : fmt::format("\n{} = {}\n", key, toml_value(field.kind, field.default_values));
        }
    }
    return text;
}

}  // namespace voodoo::pipeline
