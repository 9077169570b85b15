#include "device/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace voodoo::device {
namespace {

/// A line "Name:  123 kB" of a /proc file, in bytes; 0 if it is not there.
uint64_t proc_value(const char* path, const std::string& name) {
    std::ifstream file(path);
    std::string key;
    while (file >> key) {
        uint64_t value = 0;
        if (key == name + ":" && file >> value) return value * 1024;
        file.ignore(4096, '\n');
    }
    return 0;
}

uint64_t file_number(const char* path, uint64_t fallback) {
    std::ifstream file(path);
    uint64_t value = 0;
    return file >> value ? value : fallback;
}

}  // namespace

uint64_t available_memory() {
    uint64_t bytes = proc_value("/proc/meminfo", "MemAvailable");
    const uint64_t limit = file_number("/sys/fs/cgroup/memory.max", UINT64_MAX);
    const uint64_t used = file_number("/sys/fs/cgroup/memory.current", 0);
    if (limit != UINT64_MAX) bytes = std::min(bytes, limit > used ? limit - used : 0);
    rlimit address{};
    if (getrlimit(RLIMIT_AS, &address) == 0 && address.rlim_cur != RLIM_INFINITY) {
        const uint64_t mapped = proc_value("/proc/self/status", "VmSize");
        bytes =
            std::min<uint64_t>(bytes, address.rlim_cur > mapped ? address.rlim_cur - mapped : 0);
    }
    return bytes;
}

ProcessMemory process_memory() {
    ProcessMemory memory;
    memory.resident = proc_value("/proc/self/status", "VmRSS");
    memory.peak_resident = proc_value("/proc/self/status", "VmHWM");
    memory.file_pages = proc_value("/proc/self/status", "RssFile");
    memory.anonymous = proc_value("/proc/self/status", "RssAnon");
    return memory;
}

}  // namespace voodoo::device
