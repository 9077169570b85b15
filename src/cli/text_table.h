// A table for the terminal: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace voodoo::cli {

class TextTable {
public:
    enum class Align { left, right };

    /// One entry per column.
    explicit TextTable(std::vector<Align> columns) : columns_(std::move(columns)) {}

    /// Missing cells are empty; more than there are columns is a bug.
    void add_row(std::vector<std::string> cells);

    /// Rows with two spaces between columns, no blanks at the end of a line, each with a newline.
    std::string text() const;

private:
    std::vector<Align> columns_;
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace voodoo::cli
