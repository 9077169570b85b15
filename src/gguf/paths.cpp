#include "gguf/paths.h"

#include <fmt/format.h>

#include <string_view>
#include <system_error>

namespace voodoo::gguf {

namespace fs = std::filesystem;

namespace {

/// Decimal digits only; nothing on anything else. At most 9 digits, so it can't overflow.
std::optional<uint32_t> find_number(std::string_view digits) {
    if (digits.size() < 5 || digits.size() > 9) {
        return std::nullopt;
    }
    uint32_t value = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') {
            return std::nullopt;
        }
        value = value * 10 + static_cast<uint32_t>(c - '0');
    }
    return value;
}

}  // namespace

fs::path shard_path(const fs::path& prefix, uint32_t shard, uint32_t n_shards) {
    return prefix.string() + fmt::format("-{:05}-of-{:05}.gguf", shard + 1, n_shards);
}

std::optional<ShardName> find_shard_name(const fs::path& path) {
    constexpr std::string_view kExtension = ".gguf";
    constexpr std::string_view kOf = "-of-";
    const std::string name = path.filename().string();
    if (!name.ends_with(kExtension)) {
        return std::nullopt;
    }
    const std::string_view stem = std::string_view(name).substr(0, name.size() - kExtension.size());
    const size_t of = stem.rfind(kOf);
    if (of == std::string_view::npos || of == 0) {
        return std::nullopt;
    }
    const size_t dash = stem.rfind('-', of - 1);
    if (dash == std::string_view::npos || dash == 0) {
        return std::nullopt;
    }
    const auto number = find_number(stem.substr(dash + 1, of - dash - 1));
    const auto count = find_number(stem.substr(of + kOf.size()));
    if (!number || !count || *number == 0 || *number > *count) {
        return std::nullopt;
    }
    ShardName result{path.parent_path() / fs::path(stem.substr(0, dash)), *number - 1, *count};
    // Only the exact spelling, e.g. no 000001, since the other shards are found by formatting.
    if (shard_path(result.prefix, result.shard, result.n_shards).filename() != path.filename()) {
        return std::nullopt;
    }
    return result;
}

bool same_file(const fs::path& a, const fs::path& b) {
    std::error_code error;
    if (fs::equivalent(a, b, error)) {
        return true;
    }
    const auto resolved = [](const fs::path& path) {
        std::error_code ignored;
        const fs::path absolute = fs::absolute(path, ignored);
        const fs::path folder = fs::weakly_canonical(absolute.parent_path(), ignored);
        return (folder / absolute.filename()).lexically_normal();
    };
    return resolved(a) == resolved(b);
}

}  // namespace voodoo::gguf
