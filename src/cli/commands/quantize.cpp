#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/text_report.h"

namespace voodoo::cli {

CommandResult run_quantize(const Invocation& invocation, Observer& observer,
                           const Cancellation& cancellation) {
    const pipeline::QuantizeResult result =
        pipeline::run_quantize(invocation.settings, observer, cancellation);
    return {invocation.extras.json ? json_text(pipeline::to_json(result)) : quantize_text(result)};
}

}  // namespace voodoo::cli
