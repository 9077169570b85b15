#include "tools/tiny_text.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/files.h"

namespace voodoo::tools {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 4096;

bool is_text_file(const fs::path& path) {
    constexpr std::array<std::string_view, 8> kSuffixes = {".cpp", ".h",    ".md",    ".py",
                                                           ".sh",  ".toml", ".cmake", ".txt"};
    const std::string suffix = path.extension().string();
    return std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end();
}

}  // namespace

std::vector<fs::path> list_text_files(const std::vector<fs::path>& paths) {
    std::vector<fs::path> files;
    for (const fs::path& path : paths) {
        if (!fs::exists(path)) {
            throw Error(ErrorKind::io, "there is no such file or folder", path.string());
        }
        if (!fs::is_directory(path)) {
            files.push_back(path);
            continue;
        }
        for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
            if (entry.is_regular_file() && is_text_file(entry.path())) {
                files.push_back(entry.path());
            }
        }
    }
    // By bytes: a locale's order would differ from machine to machine.
    const auto key = [](const fs::path& path) { return path.generic_string(); };
    std::sort(files.begin(), files.end(),
              [&](const fs::path& a, const fs::path& b) { return key(a) < key(b); });
    files.erase(std::unique(files.begin(), files.end()), files.end());
    return files;
}

std::string read_texts(const std::vector<fs::path>& files) {
    std::string text;
    for (const fs::path& file : files) {
        text += read_file(file);
        if (!text.empty() && text.back() != '\n') {
            text += '\n';
        }
    }
    return text;
}

std::vector<std::string_view> cut_blocks(std::string_view text, size_t min_bytes) {
    std::vector<std::string_view> blocks;
    while (!text.empty()) {
        const size_t newline =
            text.size() <= min_bytes ? std::string_view::npos : text.find('\n', min_bytes - 1);
        const size_t size = newline == std::string_view::npos ? text.size() : newline + 1;
        blocks.push_back(text.substr(0, size));
        text.remove_prefix(size);
    }
    return blocks;
}

TextSplit split_text(std::string_view text, int n) {
    VOODOO_CHECK(n >= 2, "every {}th block can't be held out", n);
    TextSplit split;
    const std::vector<std::string_view> blocks = cut_blocks(text, kBlockBytes);
    for (size_t i = 0; i < blocks.size(); ++i) {
        (i % static_cast<size_t>(n) == 0 ? split.valid : split.train) += blocks[i];
    }
    return split;
}

std::string excerpt(std::string_view text, size_t max_bytes) {
    const std::vector<std::string_view> blocks = cut_blocks(text, kBlockBytes);
    const size_t n_wanted = std::min(blocks.size(), max_bytes / kBlockBytes);
    std::string out;
    for (size_t i = 0; i < n_wanted; ++i) {
        const std::string_view block = blocks[i * blocks.size() / n_wanted];
        if (out.size() + block.size() <= max_bytes) {
            out += block;
        }
    }
    return out;
}

}  // namespace voodoo::tools
