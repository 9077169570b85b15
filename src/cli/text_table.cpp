#include "cli/text_table.h"

#include <algorithm>

#include "base/error.h"

namespace voodoo::cli {
namespace {

/// Columns of a UTF-8 text, one per code point.
size_t columns_of(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }));
}

}  // namespace

void TextTable::add_row(std::vector<std::string> cells) {
    VOODOO_CHECK(cells.size() <= columns_.size(), "a row of {} cells in a table of {}",
                 cells.size(), columns_.size());
    cells.resize(columns_.size());
    rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
    std::vector<size_t> widths(columns_.size(), 0);
    for (const auto& row : rows_) {
        for (size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], columns_of(row[i]));
        }
    }
    std::string result;
    for (const auto& row : rows_) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            const std::string padding(widths[i] - columns_of(row[i]), ' ');
            line += i == 0 ? "" : "  ";
            line += columns_[i] == Align::left ? row[i] + padding : padding + row[i];
        }
        line.resize(line.find_last_not_of(' ') + 1);
        result += line + "\n";
    }
    return result;
}

}  // namespace voodoo::cli
