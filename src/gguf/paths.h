// File names: the shards of a split model as llama.cpp names them, and whether two paths are one
// file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace voodoo::gguf {

/// "<prefix>-00001-of-00003.gguf" for shard 0 of 3.
std::filesystem::path shard_path(const std::filesystem::path& prefix, uint32_t shard,
                                 uint32_t n_shards);

/// What a shard's name says; `shard` counts from 0.
struct ShardName {
    std::filesystem::path prefix;  ///< path without "-00001-of-00003.gguf"
    uint32_t shard = 0;
    uint32_t n_shards = 0;
};

/// Parses "<prefix>-%05d-of-%05d.gguf"; nothing if the name has another form or the numbers make no
/// sense.
std::optional<ShardName> find_shard_name(const std::filesystem::path& path);

/// Whether both paths lead to one file: the same inode (symbolic and hard links included), or,
/// where one of them does not exist yet, the same name after its folder's links are resolved. Never
/// throws.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace voodoo::gguf
