// A run directory: where stages leave their results, and how a later call knows that they are still
// good.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/files.h"

namespace voodoo::pipeline {

/// One process works in a run directory at a time. Every file in it is written atomically, so that
/// a kill at any moment leaves only finished files.
class RunDir {
public:
    /// Creates the folder if need be and takes its lock. Throws Error(io).
    explicit RunDir(std::filesystem::path path);

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path file(const std::string& name) const { return path_ / name; }

    /// The record of a finished stage, if it was made from the same `fingerprint` (a hash of all
    /// that determines it).
    std::optional<nlohmann::json> find_stage(const std::string& stage,
                                             const std::string& fingerprint) const;
    /// Records that a stage is finished. `record` may hold figures for later stages and reports.
    void finish_stage(const std::string& stage, const std::string& fingerprint,
                      nlohmann::json record);

private:
    std::filesystem::path path_;
    std::unique_ptr<FileLock> lock_;
};

}  // namespace voodoo::pipeline
