// scripts/test_summary.sh: the closing line of `make test` counts what ctest itself would hide.
#include <gtest/gtest.h>

#include <string>

#include "script_runner.h"

namespace voodoo::meta {
namespace {

constexpr const char* kPassed = "<testcase name=\"a\" status=\"run\">\n</testcase>\n";
constexpr const char* kFailed =
    "<testcase name=\"b\" status=\"fail\">\n<failure message=\"\"/>\n</testcase>\n";
constexpr const char* kSkipped =
    "<testcase name=\"c\" status=\"notrun\">\n<skipped "
    "message=\"SKIP_REGULAR_EXPRESSION_MATCHED\"/>\n</testcase>\n";
constexpr const char* kUnbuilt =
    "<testcase name=\"d\" status=\"notrun\">\n<skipped message=\"Unable to find "
    "executable\"/>\n</testcase>\n";

ScriptResult summarize(const std::string& cases, int ctest_status) {
    const TemporaryTree tree;
    tree.write("results.xml", "<testsuite>\n" + cases + "</testsuite>\n");
    return run_script("bash '" VOODOO_SOURCE_DIR "/scripts/test_summary.sh' '" +
                      (tree.path() / "results.xml").string() + "' " + std::to_string(ctest_status));
}

TEST(TestSummary, CountsSkippedTestsApart) {
    const ScriptResult result = summarize(std::string(kPassed) + kSkipped, 0);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.output, "skipped: c\n1 passed, 0 failed, 1 skipped\n");
}

TEST(TestSummary, SaysWhyATestSkippedItself) {
    const ScriptResult result = summarize(
        "<testcase name=\"Eval.Agrees\" status=\"notrun\">\n"
        "<skipped message=\"SKIP_REGULAR_EXPRESSION_MATCHED\"/>\n"
        "<system-out>[ RUN      ] Eval.Agrees\n"
        "eval_test.cpp:7: Skipped\n"
        "no text in ../shared\n"
        "[  SKIPPED ] Eval.Agrees\n</system-out>\n</testcase>\n" +
            std::string(kPassed),
        0);
    EXPECT_EQ(result.output,
              "skipped: Eval.Agrees: no text in ../shared\n1 passed, 0 failed, 1 skipped\n");
}

TEST(TestSummary, FailsOnAFailedTest) {
    const ScriptResult result = summarize(std::string(kPassed) + kFailed, 8);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.output, "1 passed, 1 failed, 0 skipped\n");
}

TEST(TestSummary, CountsATestWhoseProgramIsMissingAsFailed) {
    const ScriptResult result = summarize(std::string(kPassed) + kUnbuilt, 8);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.output, "1 passed, 1 failed, 0 skipped\n");
}

TEST(TestSummary, FailsWhenCtestFailedWithoutAFailedTest) {
    const ScriptResult result = summarize(kPassed, 1);
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.output.find("1 passed, 1 failed, 0 skipped\n"), std::string::npos)
        << result.output;
}

TEST(TestSummary, FailsOnNoTestAtAll) {
    EXPECT_EQ(summarize("", 0).status, 1);
    EXPECT_EQ(run_script("bash '" VOODOO_SOURCE_DIR "/scripts/test_summary.sh' no/such/file.xml 0")
                  .status,
              1);
}

}  // namespace
}  // namespace voodoo::meta
