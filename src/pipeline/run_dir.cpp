#include "pipeline/run_dir.h"

#include "base/error.h"

namespace voodoo::pipeline {

RunDir::RunDir(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code code;
    std::filesystem::create_directories(path_, code);
    if (code)
        throw Error(ErrorKind::io,
                    fmt::format("can't create the run directory: {}", code.message()),
                    path_.string());
    lock_ = std::make_unique<FileLock>(path_ / "lock");
}

std::optional<nlohmann::json> RunDir::find_stage(const std::string& stage,
                                                 const std::string& fingerprint) const {
    const std::filesystem::path name = file(stage + ".stage.json");
    if (!std::filesystem::exists(name)) return std::nullopt;
    nlohmann::json record = nlohmann::json::parse(read_file(name), nullptr, false);
    // A record that can't be read counts as absent: the stage is done again.
    if (!record.is_object() || !record.contains("fingerprint") ||
        record["fingerprint"] != fingerprint)
        return std::nullopt;
    return record;
}

void RunDir::finish_stage(const std::string& stage, const std::string& fingerprint,
                          nlohmann::json record) {
    record["fingerprint"] = fingerprint;
    write_file_atomic(file(stage + ".stage.json"), record.dump(1) + "\n");
}

}  // namespace voodoo::pipeline
