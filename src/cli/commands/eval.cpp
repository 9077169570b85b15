#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/text_report.h"
#include "model/tokenize.h"

namespace voodoo::cli {

CommandResult run_eval(const Invocation& invocation, Observer& observer,
                       const Cancellation& cancellation) {
    const Extras& extras = invocation.extras;
    eval::EvalOptions options;
    options.n_ctx = extras.ctx_size;
    options.max_chunks = extras.chunks;
    options.n_threads = invocation.settings.n_threads;
    const std::string text = model::read_text_file(extras.text);
    const std::vector<eval::KlReport> reports =
        eval::evaluate_kl(extras.reference, extras.models, text, options, observer, cancellation);
    if (!extras.json) {
        return {eval_text(reports)};
    }
    nlohmann::json models = nlohmann::json::array();
    for (const eval::KlReport& report : reports) {
        models.push_back(eval::to_json(report));
    }
    return {json_text(nlohmann::json{{"reference", extras.reference.string()},
                                     {"text", extras.text.string()},
                                     {"models", std::move(models)}})};
}

}  // namespace voodoo::cli
