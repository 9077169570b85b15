#include "cli/exit_code.h"

#include <gtest/gtest.h>

#include <csignal>

#include "cli/signals.h"

namespace voodoo::cli {
namespace {

TEST(ExitCode, IsFixedForEveryKindOfError) {
    EXPECT_EQ(exit_code(ErrorKind::usage), 2);
    EXPECT_EQ(exit_code(ErrorKind::io), 1);
    EXPECT_EQ(exit_code(ErrorKind::bad_file), 1);
    EXPECT_EQ(exit_code(ErrorKind::unsupported_op), 1);
    EXPECT_EQ(exit_code(ErrorKind::unsupported_model), 1);
    EXPECT_EQ(exit_code(ErrorKind::infeasible_budget), 3);
    EXPECT_EQ(exit_code(ErrorKind::out_of_memory), 1);
    EXPECT_EQ(exit_code(ErrorKind::device), 1);
    EXPECT_EQ(exit_code(ErrorKind::internal), 70);
    EXPECT_EQ(exit_code(ErrorKind::interrupted, SIGINT), 130);
    EXPECT_EQ(exit_code(ErrorKind::interrupted, SIGTERM), 143);
    EXPECT_EQ(exit_code(ErrorKind::interrupted), 1);
}

TEST(ErrorText, SaysWhatWhereAndWhatToDo) {
    EXPECT_EQ(error_text(Error(ErrorKind::io, "no such file", "a.gguf", "check the path")),
              "voodoo: error: no such file [a.gguf]\n  hint: check the path\n");
    EXPECT_EQ(error_text(Error(ErrorKind::io, "no such file")), "voodoo: error: no such file\n");
}

TEST(SignalGuard, TurnsTheFirstSignalIntoARequest) {
    Cancellation cancellation;
    const SignalGuard guard(cancellation);
    EXPECT_EQ(guard.received(), 0);
    std::raise(SIGTERM);
    EXPECT_TRUE(cancellation.requested());
    EXPECT_EQ(guard.received(), SIGTERM);
}

TEST(SignalGuardDeathTest, EndsTheProcessAtTheSecondSignalOfEitherKind) {
    const auto twice = [](int first, int second) {
        Cancellation cancellation;
        const SignalGuard guard(cancellation);
        std::raise(first);
        std::raise(second);
    };
    EXPECT_EXIT(twice(SIGINT, SIGINT), testing::KilledBySignal(SIGINT),
                "stopping at the next safe point");
    EXPECT_EXIT(twice(SIGINT, SIGTERM), testing::KilledBySignal(SIGTERM),
                "stopping at the next safe point");
}

}  // namespace
}  // namespace voodoo::cli
