// Runs one of the repository's scripts on a temporary tree that a test writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace voodoo::meta {

/// Exit status of a command (-1 if it did not exit by itself) and what it printed, stderr included.
struct ScriptResult {
    int status;
    std::string output;
};

/// Runs a shell command and waits for it.
ScriptResult run_script(const std::string& command);

/// A folder of its own in the system's temporary folder, removed with the object.
class TemporaryTree {
public:
    TemporaryTree();
    ~TemporaryTree();
    TemporaryTree(const TemporaryTree&) = delete;
    TemporaryTree& operator=(const TemporaryTree&) = delete;

    /// Writes a file below the folder, its parent folders included.
    void write(const std::filesystem::path& relative, std::string_view text) const;
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

}  // namespace voodoo::meta
