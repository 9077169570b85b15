// Reader of GGUF models, split ones included, over read-only mappings. Files are untrusted:
// everything is validated before it is used, and whatever is wrong is an Error(bad_file), never a
// crash.
//
//   File model = File::open("model-00002-of-00003.gguf");   // any shard
//   for (const TensorInfo& tensor : model.tensors()) { use(model.data(tensor)); model.drop(tensor);
//   }
//
// Not covered: a file that another process truncates while it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "gguf/tensor.h"
#include "gguf/value.h"

namespace voodoo::gguf {

/// An open model: one file, or all shards of a split one. Const members may be called from many
/// threads.
class File {
public:
    /// Opens a model by its file or any of its shards and validates it. Throws Error(bad_file) that
    /// names the file and what is wrong with it, Error(io) if a file (a shard that is missing too)
    /// can't be read.
    static File open(const std::filesystem::path& path);

    /// All tensors in file order, shard after shard. Names are unique.
    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    /// The tensor of a name, or nullptr. Valid while this object lives (moving it keeps the pointer
    /// valid).
    const TensorInfo* find_tensor(std::string_view name) const;
    /// The tensor's bytes in the mapping, size_bytes of them. Valid while this object lives.
    std::span<const std::byte> data(const TensorInfo& tensor) const;
    /// Tells the kernel that the tensor's pages may go; a later read brings them back from the
    /// file.
    void drop(const TensorInfo& tensor) const;

    /// Metadata in file order: of the first shard, its split.* keys included (see
    /// without_split_keys).
    const Metadata& metadata() const { return metadata_; }
    const Value* find(std::string_view key) const { return find_value(metadata_, key); }

    // The value of a key; nothing if the key is absent. Error(bad_file) if it has another type.
    std::optional<std::string> find_string(std::string_view key) const;
    std::optional<uint64_t> find_u64(
        std::string_view key) const;                             ///< any integer type, not negative
    std::optional<double> find_f64(std::string_view key) const;  ///< f32 or f64
    std::optional<bool> find_bool(std::string_view key) const;

    /// general.architecture. Error(bad_file) if it is missing or no string.
    std::string architecture() const;
    /// Alignment of the first shard's data section.
    uint64_t alignment() const { return alignment_; }
    uint32_t version() const { return version_; }
    /// Sum of the sizes of all shards' files.
    uint64_t total_size_bytes() const;
    /// The shards' files, first shard first.
    const std::vector<std::filesystem::path>& paths() const { return paths_; }

private:
    File() = default;
    [[noreturn]] void fail(std::string_view key, const Value& value, std::string_view wanted) const;

    std::vector<std::filesystem::path> paths_;
    std::vector<MappedFile> mappings_;
    Metadata metadata_;
    std::vector<TensorInfo> tensors_;
    std::vector<size_t> by_name_;  // indices into tensors_, sorted by name
    uint64_t alignment_ = kDefaultAlignment;
    uint32_t version_ = 0;
};

}  // namespace voodoo::gguf
