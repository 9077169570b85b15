// Files: reading, mapping, and writing that never leaves a partial file under the final name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace voodoo {

/// Whole file as bytes. Throws Error(io).
std::string read_file(const std::filesystem::path& path);

/// Writes to a temporary name in the same folder, fsyncs, renames over `path`. Throws Error(io).
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// A file being written under a temporary name. commit() makes it appear under its final name;
/// a destructor without commit() removes it.
class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path path);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(const void* data, size_t size_bytes);
    void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
    /// Bytes written so far.
    uint64_t position() const { return position_; }
    /// fsync, close, rename, fsync of the folder. Throws Error(io).
    void commit();
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    std::filesystem::path temp_path_;
    int fd_ = -1;
    uint64_t position_ = 0;
};

/// Read-only shared mapping of a whole file. Throws Error(io). An empty file has size 0 and no
/// data.
class MappedFile {
public:
    MappedFile() = default;
    explicit MappedFile(const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
    /// Tells the kernel that a range will not be read soon, so that its pages can go.
    void drop(size_t offset, size_t size_bytes) const;

private:
    const std::byte* data_ = nullptr;
    size_t size_bytes_ = 0;
};

/// An advisory lock on a file, held for the object's life, so that two processes do not work in one
/// folder. Throws Error(io) naming the holder's process id if it is taken.
class FileLock {
public:
    explicit FileLock(const std::filesystem::path& path);
    ~FileLock();
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

private:
    int fd_ = -1;
};

}  // namespace voodoo
