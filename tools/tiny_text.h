// The text a tiny model is trained on: files in a fixed order, cut into blocks, some of them held
// out. The same files give the same texts on every machine.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace voodoo::tools {

/// Text files below the given files and folders, sorted by path and without repetitions. Of a
/// folder only sources and documents are taken, recursively; a file named itself always is.
/// Throws Error(io) for a path that does not exist.
std::vector<std::filesystem::path> list_text_files(const std::vector<std::filesystem::path>& paths);

/// The files one after another, each ending in a newline.
std::string read_texts(const std::vector<std::filesystem::path>& files);

/// Cuts into pieces of whole lines, each of at least `min_bytes` but for the last.
std::vector<std::string_view> cut_blocks(std::string_view text, size_t min_bytes);

struct TextSplit {
    std::string train;
    std::string valid;
};

/// Holds out blocks 0, n, 2n, ... of about 4 KiB.
TextSplit split_text(std::string_view text, int n);

/// At most max_bytes of `text` in blocks taken evenly over its length.
std::string excerpt(std::string_view text, size_t max_bytes);

}  // namespace voodoo::tools
