#include "cli/commands/commands.h"
#include "cli/stages_json.h"
#include "cli/text_report.h"

namespace voodoo::cli {

CommandResult run_data(const Invocation& invocation, Observer& observer,
                       const Cancellation& cancellation) {
    const auto& settings = invocation.settings;
    const std::vector<pipeline::StageResult> stages =
        pipeline::run_data(settings, observer, cancellation);
    if (invocation.extras.json) {
        return {json_text(stages_json(settings.run_dir, stages))};
    }
    return {"run directory " + settings.run_dir.string() + "\n\n" + stages_text(stages)};
}

}  // namespace voodoo::cli
