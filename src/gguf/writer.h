// Streaming writer of GGUF models, in one file or in shards. The layout is fixed before the first
// byte; nothing appears under a final name before everything is complete.
//
//   Writer writer("out.gguf", metadata, tensors);
//   for (const PlannedTensor& tensor : tensors) { writer.begin_tensor(tensor.name);
//   writer.write(bytes); } writer.commit();
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "gguf/layout.h"

namespace voodoo::gguf {

/// Writes the planned tensors in their planned order. Without commit() the destructor removes what
/// was written. Not safe for use from several threads. Wrong order or sizes are Error(internal),
/// the disk's are Error(io).
class Writer {
public:
    /// One file at `path`; header written at once.
    Writer(const std::filesystem::path& path, const Metadata& metadata,
           std::vector<PlannedTensor> tensors);
    /// Shards "<prefix>-00001-of-0000N.gguf" as make_split_layout cuts them; also if there is only
    /// one.
    static Writer split(const std::filesystem::path& prefix, const Metadata& metadata,
                        std::vector<PlannedTensor> tensors, uint64_t max_shard_bytes);

    /// Exact sum of the sizes of all files, known before any tensor is written.
    uint64_t planned_size_bytes() const;
    /// Final names of all files.
    std::vector<std::filesystem::path> paths() const;

    /// Starts the next tensor, which must be the next of the plan; the one before must be complete.
    void begin_tensor(std::string_view name);
    /// Appends a piece of the current tensor's bytes.
    void write(std::span<const std::byte> bytes);
    /// begin_tensor and write of all its bytes.
    void write_tensor(std::string_view name, std::span<const std::byte> bytes);

    /// Flushes and renames all files, the first shard last: a kill in between never leaves a model
    /// that opens but mixes old and new shards. Error(internal) if a tensor is missing.
    void commit();

private:
    struct Shard {
        std::filesystem::path path;
        Layout layout;
        std::unique_ptr<AtomicFile> file;
    };

    Writer() = default;
    void add_shard(const std::filesystem::path& path, Layout layout);
    void finish_tensor();

    std::vector<Shard> shards_;
    size_t shard_ = 0;            // shard of the next or current tensor
    size_t tensor_ = 0;           // its index in the shard
    uint64_t written_bytes_ = 0;  // of the current tensor
    bool in_tensor_ = false;
    bool committed_ = false;
};

}  // namespace voodoo::gguf
