#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/text_report.h"

namespace voodoo::cli {

CommandResult run_doctor(const Invocation& invocation) {
    const pipeline::DoctorReport report = pipeline::doctor(invocation.settings);
    return {invocation.extras.json ? json_text(pipeline::to_json(report)) : doctor_text(report),
            report.ok() ? 0 : 1};
}

}  // namespace voodoo::cli
