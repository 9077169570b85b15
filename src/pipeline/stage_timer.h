// Reports a stage to an Observer and records its time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/progress.h"
#include "pipeline/stages.h"

namespace voodoo::pipeline {

/// Begins a stage; finish() ends it. A stage that an exception leaves is not recorded.
class StageTimer {
public:
    StageTimer(std::string stage, double total, std::string_view unit, Observer& observer)
        : stage_(std::move(stage)), observer_(observer), start_(std::chrono::steady_clock::now()) {
        observer_.stage_begin(stage_, total, unit);
    }
    void progress(double done, std::string_view note = {}) {
        observer_.stage_progress(stage_, done, note);
    }
    double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    void finish(std::vector<StageResult>& results) {
        results.push_back({stage_, seconds(), false});
        observer_.stage_end(stage_, results.back().seconds, false);
    }
    /// A stage whose result was there already.
    static void cached(const std::string& stage, std::vector<StageResult>& results,
                       Observer& observer) {
        results.push_back({stage, 0.0, true});
        observer.stage_end(stage, 0.0, true);
    }

private:
    std::string stage_;
    Observer& observer_;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace voodoo::pipeline
