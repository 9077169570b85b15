// Memory of the machine and of this process.
#pragma once

#include <cstdint>

namespace voodoo::device {

/// Bytes that this process may still use: the machine's available memory, the cgroup's and the
/// process's limits.
uint64_t available_memory();

/// Memory of this process in bytes, from the kernel's accounting.
struct ProcessMemory {
    uint64_t resident = 0;       ///< resident set
    uint64_t peak_resident = 0;  ///< its high-water mark
    uint64_t file_pages = 0;     ///< the part of `resident` that is mapped files: evictable
    uint64_t anonymous = 0;      ///< the part that is not
};
ProcessMemory process_memory();

}  // namespace voodoo::device
