// The commands: each runs its job and gives what goes to stdout. One file per command.
#pragma once

#include <string>

#include "cli/parse.h"

namespace voodoo::cli {

struct CommandResult {
    std::string output;  ///< text, or JSON with --json
    int exit_code = 0;
};

// All throw Error.
CommandResult run_quantize(const Invocation& invocation, Observer& observer,
                           const Cancellation& cancellation);
CommandResult run_data(const Invocation& invocation, Observer& observer,
                       const Cancellation& cancellation);
CommandResult run_train(const Invocation& invocation, Observer& observer,
                        const Cancellation& cancellation);
CommandResult run_export(const Invocation& invocation, Observer& observer,
                         const Cancellation& cancellation);
CommandResult run_eval(const Invocation& invocation, Observer& observer,
                       const Cancellation& cancellation);
CommandResult run_inspect(const Invocation& invocation);
CommandResult run_doctor(const Invocation& invocation);

/// Text of a JSON document as it is printed.
template <class Json>
std::string json_text(const Json& document) {
    // Paths need not be UTF-8, JSON must be.
    return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace voodoo::cli
