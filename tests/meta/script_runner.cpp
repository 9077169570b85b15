#include "script_runner.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "base/error.h"
#include "base/files.h"

namespace voodoo::meta {

ScriptResult run_script(const std::string& command) {
    FILE* pipe = popen((command + " 2>&1").c_str(), "r");
    VOODOO_CHECK(pipe != nullptr, "popen failed for {}", command);
    ScriptResult result{-1, {}};
    std::array<char, 4096> buffer{};
    for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
        result.output.append(buffer.data(), n);
    }
    const int raw = pclose(pipe);
    if (WIFEXITED(raw)) result.status = WEXITSTATUS(raw);
    return result;
}

TemporaryTree::TemporaryTree() {
    std::string pattern = (std::filesystem::temp_directory_path() / "voodoo-meta-XXXXXX").string();
    VOODOO_CHECK(mkdtemp(pattern.data()) != nullptr, "mkdtemp failed for {}", pattern);
    path_ = pattern;
}

TemporaryTree::~TemporaryTree() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

void TemporaryTree::write(const std::filesystem::path& relative, std::string_view text) const {
    const std::filesystem::path target = path_ / relative;
    std::filesystem::create_directories(target.parent_path());
    write_file_atomic(target, text);
}

}  // namespace voodoo::meta
