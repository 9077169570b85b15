#include "cli/stage_meter.h"

#include <gtest/gtest.h>

namespace voodoo::cli {
namespace {

TEST(StageMeter, ShowsAmountShareRateAndRemainingTime) {
    StageMeter meter("train", 1000, "tokens", 100);
    meter.update(0, "", 100);
    meter.update(250, "loss 2.1", 110);
    EXPECT_EQ(meter.line(), "train: 250/1000 tokens, 25 %, 25.0 tokens/s, 30.0 s left, loss 2.1");
    EXPECT_EQ(meter.end_line(40, false), "train: done in 40.0 s, 25.0 tokens/s");
}

TEST(StageMeter, DoesNotCountWhatAResumedStageFound) {
    StageMeter meter("train", 1000, "tokens", 0);
    meter.update(800, "", 0.01);
    EXPECT_FALSE(meter.rate());
    EXPECT_FALSE(meter.remaining());
    meter.update(850, "", 5.01);
    EXPECT_NEAR(*meter.rate(), 10, 1e-9);
    EXPECT_NEAR(*meter.remaining(), 15, 1e-9);
    EXPECT_EQ(meter.end_line(20, false), "train: done in 20.0 s, 10.0 tokens/s");
}

TEST(StageMeter, TakesALateFirstReportAsWorkDone) {
    StageMeter meter("encode", 100, "tensors", 0);
    meter.update(10, "", 5);
    EXPECT_NEAR(*meter.rate(), 2, 1e-9);
}

TEST(StageMeter, FollowsTheRateOfTheLastHalfMinute) {
    StageMeter meter("encode", 0, "tensors", 0);
    meter.update(0, "", 0);
    meter.update(1000, "", 10);  // fast at first
    for (int second = 50; second <= 100; second += 10) {
        meter.update(1000 + second, "", second);
    }
    EXPECT_NEAR(*meter.rate(), 1, 1e-9);
    EXPECT_FALSE(meter.remaining()) << "without a total";
}

TEST(StageMeter, PrintsBytesAsSizesAndUnknownTotals) {
    StageMeter bytes("export", 2e9, "bytes", 0);
    bytes.update(0, "", 0);
    bytes.update(5e8, "", 5);
    EXPECT_EQ(bytes.line(), "export: 500 MB/2.00 GB, 25 %, 100 MB/s, 15.0 s left");
    StageMeter unknown("scan", 0, "files", 0);
    unknown.update(3, "", 0.1);
    EXPECT_EQ(unknown.line(), "scan: 3 files");
}

TEST(StageMeter, SaysThatAStageWasThereAlready) {
    EXPECT_EQ(StageMeter("data", 0, "", 0).end_line(0, true), "data: taken from the run directory");
}

TEST(FormatFigure, HasThreeSignificantDigits) {
    EXPECT_EQ(format_figure(1234.4), "1234");
    EXPECT_EQ(format_figure(12.34), "12.3");
    EXPECT_EQ(format_figure(1.234), "1.23");
    EXPECT_EQ(format_figure(0.1234), "0.123");
    EXPECT_EQ(format_figure(0), "0");
}

}  // namespace
}  // namespace voodoo::cli
