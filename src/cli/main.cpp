// The program: arguments and environment in, result on stdout, messages on stderr, exit code out.
#include <cstdio>
#include <cstdlib>
#include <new>

#include "cli/commands/commands.h"
#include "cli/console_observer.h"
#include "cli/exit_code.h"
#include "cli/parse.h"
#include "cli/signals.h"

namespace voodoo::cli {
namespace {

CommandResult run(const Invocation& invocation, const Cancellation& cancellation) {
    if (!invocation.command) {
        return {invocation.text};
    }
    ConsoleOptions options = stderr_options();
    options.quiet = invocation.extras.quiet;
    options.verbose = invocation.extras.verbose;
    ConsoleObserver observer(std::move(options));
    switch (*invocation.command) {
        case Command::quantize:
            return run_quantize(invocation, observer, cancellation);
        case Command::data:
            return run_data(invocation, observer, cancellation);
        case Command::train:
            return run_train(invocation, observer, cancellation);
        case Command::export_plan:
            return run_export(invocation, observer, cancellation);
        case Command::eval:
            return run_eval(invocation, observer, cancellation);
        case Command::inspect:
            return run_inspect(invocation);
        case Command::doctor:
            return run_doctor(invocation);
    }
    VOODOO_CHECK(false, "command {} is not run", static_cast<int>(*invocation.command));
}

void print_result(const std::string& text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!written || std::fflush(stdout) != 0) {
        throw Error(ErrorKind::io, "the result could not be written", "stdout");
    }
}

/// How to go on after an interruption, for commands that keep what they have done.
Error with_way_on(const Error& error, const Invocation& invocation) {
    const std::filesystem::path& run_dir = invocation.settings.run_dir;
    const bool resumable =
        invocation.command && *invocation.command != Command::eval && !run_dir.empty();
    if (error.kind() != ErrorKind::interrupted || !resumable || !error.hint().empty()) {
        return error;
    }
    return {error.kind(), error.message(), error.where(),
            "the same command continues this run from " + run_dir.string()};
}

int report(const Error& error, int signal) {
    const std::string text = error_text(error);
    std::fwrite(text.data(), 1, text.size(), stderr);
    return exit_code(error.kind(), signal);
}

int program(const std::vector<std::string>& arguments) {
    Cancellation cancellation;
    const SignalGuard signals(cancellation);
    Invocation invocation;
    try {
        const char* const ggml_lib = std::getenv("VOODOO_GGML_LIB");
        invocation = parse(arguments, {.ggml_lib = ggml_lib == nullptr ? "" : ggml_lib});
        const CommandResult result = run(invocation, cancellation);
        print_result(result.output);
        return result.exit_code;
    } catch (const Error& error) {
        return report(with_way_on(error, invocation), signals.received());
    } catch (const std::bad_alloc&) {
        return report(
            {ErrorKind::out_of_memory, "out of memory", {}, "bound the run with --memory"}, 0);
    } catch (const std::filesystem::filesystem_error& error) {
        return report({ErrorKind::io, error.what()}, 0);
    } catch (const std::exception& error) {
        return report(
            {ErrorKind::internal, error.what(), {}, "this is a bug in voodoo, please report it"},
            0);
    }
}

}  // namespace
}  // namespace voodoo::cli

int main(int argc, char** argv) {
    return voodoo::cli::program(std::vector<std::string>(argv + 1, argv + argc));
}
