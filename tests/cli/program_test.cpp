// Runs the program as a user does: exit codes, and what goes to which stream.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "text_checks.h"

namespace voodoo::cli {
namespace {

struct Outcome {
    int status = -1;
    std::string text;
};

/// Runs a shell command made of the program and `arguments`, which may redirect its streams.
Outcome run(const std::string& arguments) {
    const std::string command = "'" VOODOO_PROGRAM "' " + arguments;
    FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) {
        ADD_FAILURE() << "cannot run " << command;
        return {};
    }
    Outcome outcome;
    char buffer[4096];
    for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
        outcome.text.append(buffer, n);
    }
    const int status = ::pclose(pipe);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
}

constexpr const char* kOnlyErrors = " 2>&1 >/dev/null";
constexpr const char* kOnlyResults = " 2>/dev/null";

TEST(Program, PrintsItsVersionOnStdout) {
    const Outcome outcome = run(std::string("--version") + kOnlyResults);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_TRUE(matches(outcome.text, "^voodoo [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
}

TEST(Program, ExplainsUsageErrorsOnStderrAndExitsWithTwo) {
    for (const std::string arguments :
         {"", "quantise", "quantize", "quantize m.gguf --size 4XB -o o.gguf",
          "eval --model a --reference b", "export --run /nonexistent -o o.gguf",
          "doctor --siez 3"}) {
        const Outcome errors = run(arguments + kOnlyErrors);
        EXPECT_EQ(errors.status, 2) << arguments;
        EXPECT_TRUE(begins_with(errors.text, "voodoo: error: ")) << arguments;
        EXPECT_TRUE(contains(errors.text, "\n  hint: ")) << arguments;
        EXPECT_EQ(run(arguments + kOnlyResults).text, "") << arguments;
    }
}

TEST(Program, ExitsWithOneForAModelThatIsNotThere) {
    const Outcome outcome = run(std::string("inspect /nonexistent.gguf") + kOnlyErrors);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_TRUE(contains(outcome.text, "nonexistent.gguf"));
}

TEST(Program, FailsIfItsResultCannotBeWritten) {
    const Outcome outcome = run("--help 2>&1 >/dev/full");
    EXPECT_EQ(outcome.status, 1);
    EXPECT_TRUE(contains(outcome.text, "could not be written [stdout]"));
}

TEST(Program, PrintsHelpOfEveryCommand) {
    for (const std::string command :
         {"quantize", "data", "train", "export", "eval", "inspect", "doctor"}) {
        const Outcome outcome = run(command + " --help" + kOnlyResults);
        EXPECT_EQ(outcome.status, 0);
        EXPECT_TRUE(begins_with(outcome.text, "Usage: voodoo " + command));
    }
}

}  // namespace
}  // namespace voodoo::cli
