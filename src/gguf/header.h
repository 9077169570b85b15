// Parses and validates everything before the tensor data of one GGUF file (one shard). The bytes
// are taken as hostile: every count, length and offset is checked against what the file can hold
// before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/tensor.h"
#include "gguf/value.h"

namespace voodoo::gguf {

// Caps far above every real model that keep memory small whatever a file claims (a sparse file may
// be huge).
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{1}
                                            << 30;  ///< metadata and tensor infos of a shard
inline constexpr uint64_t kMaxKeys = uint64_t{1} << 20;
inline constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
inline constexpr uint64_t kMaxStrings = uint64_t{1} << 24;  ///< strings in one shard's metadata
inline constexpr uint64_t kMaxKeyBytes = 65535;             ///< the format's own limit

struct Header {
    uint32_t version = 0;
    uint64_t alignment = kDefaultAlignment;
    uint64_t data_offset = 0;  ///< where the data section starts in the file
    Metadata metadata;
    std::vector<TensorInfo> tensors;
};

/// Parses the whole file's bytes. `where` names the file in errors, `shard` is put into the
/// tensors. Throws Error(bad_file) that says what is wrong and where; memory stays within a small
/// multiple of the header.
Header parse_header(std::span<const std::byte> file, const std::string& where, int shard);

}  // namespace voodoo::gguf
