#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/text_report.h"

namespace voodoo::cli {

CommandResult run_inspect(const Invocation& invocation) {
    const pipeline::Inspection inspection = pipeline::inspect(invocation.settings);
    if (invocation.extras.json) {
        return {json_text(pipeline::to_json(inspection))};
    }
    std::optional<uint64_t> size_bytes = invocation.settings.size_bytes;
    if (invocation.settings.bpw) {
        size_bytes = static_cast<uint64_t>(*invocation.settings.bpw *
                                           static_cast<double>(inspection.n_weights) / 8);
    }
    return {inspection_text(inspection, size_bytes)};
}

}  // namespace voodoo::cli
