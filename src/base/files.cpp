#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace voodoo {
namespace {

[[noreturn]] void throw_errno(const std::string& what, const std::filesystem::path& path) {
    const int code = errno;
    std::string hint;
    if (code == ENOSPC) hint = "free some disk space and run the same command again";
    if (code == EACCES || code == EROFS) hint = "check the folder's permissions";
    throw Error(ErrorKind::io, fmt::format("{}: {}", what, std::strerror(code)), path.string(),
                hint);
}

void sync_folder(const std::filesystem::path& path) {
    std::filesystem::path folder = path.parent_path();
    if (folder.empty()) folder = ".";
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;  // Some file systems do not allow it; the rename itself has happened.
    ::fsync(fd);
    ::close(fd);
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw_errno("can't open file", path);
    std::string bytes;
    char buffer[1 << 16];
    while (true) {
        const ssize_t n = ::read(fd, buffer, sizeof(buffer));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            const int code = errno;
            ::close(fd);
            errno = code;
            throw_errno("can't read file", path);
        }
        if (n == 0) break;
        bytes.append(buffer, static_cast<size_t>(n));
    }
    ::close(fd);
    return bytes;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
    AtomicFile file(path);
    file.write(bytes);
    file.commit();
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
    temp_path_ = path_;
    temp_path_ += fmt::format(".{}.tmp", ::getpid());
    fd_ = ::open(temp_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) throw_errno("can't create file", temp_path_);
}

AtomicFile::~AtomicFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temp_path_.c_str());
}

void AtomicFile::write(const void* data, size_t size_bytes) {
    VOODOO_CHECK(fd_ >= 0, "write after commit of {}", path_.string());
    const char* p = static_cast<const char*>(data);
    while (size_bytes > 0) {
        const ssize_t n = ::write(fd_, p, size_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw_errno("can't write file", path_);
        p += n;
        size_bytes -= static_cast<size_t>(n);
        position_ += static_cast<uint64_t>(n);
    }
}

void AtomicFile::commit() {
    VOODOO_CHECK(fd_ >= 0, "second commit of {}", path_.string());
    if (::fsync(fd_) != 0) throw_errno("can't flush file", path_);
    // close() may report a late write error (quota, network file system).
    if (::close(fd_) != 0) {
        fd_ = -1;
        ::unlink(temp_path_.c_str());
        throw_errno("can't close file", path_);
    }
    fd_ = -1;
    if (::rename(temp_path_.c_str(), path_.c_str()) != 0) {
        const int code = errno;
        ::unlink(temp_path_.c_str());
        errno = code;
        throw_errno("can't rename the finished file to its name", path_);
    }
    sync_folder(path_);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw_errno("can't open file", path);
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd);
        throw Error(ErrorKind::io, "not a regular file", path.string());
    }
    size_bytes_ = static_cast<size_t>(info.st_size);
    if (size_bytes_ > 0) {
        void* data = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            const int code = errno;
            ::close(fd);
            errno = code;
            throw_errno("can't map file", path);
        }
        data_ = static_cast<const std::byte*>(data);
    }
    ::close(fd);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
}

void MappedFile::drop(size_t offset, size_t size_bytes) const {
    if (data_ == nullptr || offset >= size_bytes_) return;
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t begin = (offset + page - 1) / page * page;
    const size_t end = std::min(offset + size_bytes, size_bytes_) / page * page;
    if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

FileLock::FileLock(const std::filesystem::path& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw_errno("can't create lock file", path);
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        char holder[32] = {};
        const ssize_t n = ::pread(fd_, holder, sizeof(holder) - 1, 0);
        ::close(fd_);
        fd_ = -1;
        throw Error(ErrorKind::io,
                    fmt::format("another process works here (process id {})",
                                n > 0 ? std::string(holder, static_cast<size_t>(n)) : "unknown"),
                    path.string(), "wait for it to end, or use another run directory");
    }
    const std::string pid = std::to_string(::getpid());
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, pid.data(), pid.size(), 0) < 0) {
        ::close(fd_);
        fd_ = -1;
        throw_errno("can't write lock file", path);
    }
}

FileLock::~FileLock() {
    if (fd_ >= 0) ::close(fd_);
}

}  // namespace voodoo
