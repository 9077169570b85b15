#include "cli/console_observer.h"

#include <gtest/gtest.h>

#include "text_checks.h"

namespace voodoo::cli {
namespace {

/// An observer that writes into a string under a clock that the test sets.
struct Console {
    std::string text;
    double time = 0;
    std::unique_ptr<ConsoleObserver> observer;

    explicit Console(ConsoleOptions options) {
        options.write = [this](std::string_view more) { text += more; };
        options.now = [this] { return time; };
        observer = std::make_unique<ConsoleObserver>(std::move(options));
    }
    void progress_at(double when, double done) {
        time = when;
        observer->stage_progress("train", done, "");
    }
};

TEST(ConsoleObserver, PrintsAPlainLineEveryFewSeconds) {
    Console console({});
    console.observer->stage_begin("train", 100, "steps");
    console.progress_at(0, 0);
    console.progress_at(1, 10);
    EXPECT_EQ(console.text, "");
    console.progress_at(5, 50);
    console.progress_at(6, 60);
    EXPECT_EQ(console.text, "train: 50/100 steps, 50 %, 10.0 steps/s, 5.0 s left\n");
    console.observer->stage_end("train", 10, false);
    EXPECT_TRUE(ends_with(console.text, "train: done in 10.0 s, 10.0 steps/s\n"));
    EXPECT_FALSE(contains(console.text, "\r"));
}

TEST(ConsoleObserver, UpdatesOneLineOnATerminal) {
    Console console({.terminal = true, .width = 40});
    console.observer->stage_begin("train", 100, "steps");
    console.progress_at(1, 10);
    console.progress_at(1.01, 11);  // too soon
    console.progress_at(2, 20);
    EXPECT_FALSE(contains(console.text, "\n"));
    EXPECT_TRUE(contains(console.text, "\r\033[Ktrain: 20/100 steps"));
    EXPECT_FALSE(contains(console.text, "11/100"));
    console.text.clear();
    console.observer->log(LogLevel::info, "a message");
    EXPECT_TRUE(begins_with(console.text, "\r\033[K["));
    EXPECT_TRUE(ends_with(console.text, "info: a message\n"));
    console.text.clear();
    console.progress_at(3, 30);
    console.observer->stage_end("train", 10, false);
    EXPECT_TRUE(ends_with(console.text, "\r\033[Ktrain: done in 10.0 s, 10.0 steps/s\n"));
}

TEST(ConsoleObserver, KeepsOnlyWarningsWhenQuiet) {
    for (const bool terminal : {false, true}) {
        Console console({.terminal = terminal, .quiet = true});
        console.observer->stage_begin("train", 100, "steps");
        console.progress_at(10, 50);
        console.observer->log(LogLevel::info, "chatter");
        console.observer->stage_end("train", 10, false);
        EXPECT_EQ(console.text, "");
        console.observer->log(LogLevel::warn, "watch out");
        EXPECT_TRUE(contains(console.text, "warning: watch out\n"));
    }
}

TEST(ConsoleObserver, ShowsDebugMessagesOnlyWhenVerbose) {
    Console plain({}), verbose({.verbose = true});
    plain.observer->log(LogLevel::debug, "detail {}");
    verbose.observer->log(LogLevel::debug, "detail {}");
    EXPECT_EQ(plain.text, "");
    EXPECT_TRUE(contains(verbose.text, "debug: detail {}\n")) << "braces in messages are no format";
}

TEST(ConsoleObserver, SurvivesReportsOfStagesThatDidNotBegin) {
    Console console({});
    console.observer->stage_progress("ghost", 1, "");
    console.observer->stage_end("ghost", 1, true);
    EXPECT_EQ(console.text, "ghost: taken from the run directory\n");
}

TEST(CutToWidth, TearsNoCharacter) {
    EXPECT_EQ(cut_to_width("abc", 5), "abc");
    EXPECT_EQ(cut_to_width("abcdef", 3), "abc");
    EXPECT_EQ(cut_to_width("ab\xC3\xA4", 3), "ab");
}

}  // namespace
}  // namespace voodoo::cli
