// Results of single stages as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <vector>

#include "pipeline/stages.h"

namespace voodoo::cli {

/// {"run": DIR, "stages": [{"stage", "seconds", "from_cache"}]}
inline nlohmann::json stages_json(const std::filesystem::path& run_dir,
                                  const std::vector<pipeline::StageResult>& stages) {
    nlohmann::json list = nlohmann::json::array();
    for (const pipeline::StageResult& stage : stages) {
        list.push_back(
            {{"stage", stage.stage}, {"seconds", stage.seconds}, {"from_cache", stage.from_cache}});
    }
    return {{"run", run_dir.string()}, {"stages", std::move(list)}};
}

}  // namespace voodoo::cli
