#include "cli/text_report.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/text_table.h"
#include "text_checks.h"

namespace voodoo::cli {
namespace {

using Align = TextTable::Align;

TEST(TextTable, AlignsColumnsAndLeavesNoBlanksAtTheEnd) {
    TextTable table({Align::left, Align::right, Align::left});
    table.add_row({"a", "1", "x"});
    table.add_row({"l\xC3\xA4nger", "100", ""});
    table.add_row({"b"});
    EXPECT_EQ(table.text(), "a         1  x\nl\xC3\xA4nger  100\nb\n");
    EXPECT_THROW(table.add_row({"1", "2", "3", "4"}), Error);
}

TEST(QuantizeText, MarksTheLayoutThatWasWritten) {
    pipeline::QuantizeResult result;
    result.files = {"out.gguf"};
    result.file_bytes = 94900000;
    result.target_bytes = 95000000;
    result.bits_per_weight = 3.125;
    result.chosen = "gates";
    result.measured = {{"gates", 94900000, 0.0123, 0.0004},
                       {"preset Q3_K_M", 93000000, 0.02, 0.001}};
    result.stages = {{"data", 12.0, true}, {"train", 65.0, false}};
    const std::string text = quantize_text(result);
    EXPECT_TRUE(contains(
        text, "wrote out.gguf\n94900000 bytes of 95000000 (99.89 %), 3.125 bits per weight\n"));
    EXPECT_TRUE(matches(text, "gates +94.9 MB +0.012300 \\+- 0.000400 +<- written\n"));
    EXPECT_TRUE(matches(text, "preset Q3_K_M +93.0 MB +0.020000 \\+- 0.001000\n"));
    EXPECT_TRUE(matches(text, "data +12.0 s +taken from the run directory\n"));
}

TEST(InspectionText, SaysWhatASizeCouldBuy) {
    pipeline::Inspection inspection;
    inspection.architecture = "llama";
    inspection.n_weights = 8000000;
    inspection.presets = {
        {"Q2_K", 3000000, 3.0}, {"Q3_K_M", 4000000, 4.0}, {"Q4_K_M", 5000000, 5.0}};
    inspection.tensors = {{"a", "BF16", {256, 4}, 2048, true, {"Q4_K", "Q8_0"}},
                          {"b", "F32", {4}, 16, false, {}}};
    inspection.min_file_bytes = 2000000;
    inspection.max_file_bytes = 9000000;
    EXPECT_TRUE(contains(
        inspection_text(inspection, 4500000),
        "4.50 MB is 4.50 bits per weight; the largest preset within it: Q3_K_M (4.00 MB)"));
    EXPECT_TRUE(
        contains(inspection_text(inspection, 2500000), "the largest preset within it: none"));
    EXPECT_TRUE(contains(inspection_text(inspection, 1000000), "below the smallest size"));
    const std::string text = inspection_text(inspection, std::nullopt);
    EXPECT_TRUE(matches(text, "a +BF16 +256x4 +2.05 kB +2 types\n"));
    EXPECT_TRUE(matches(text, "b +F32 +4 +16 B +stays\n"));
    EXPECT_TRUE(contains(text, "2 types for 1 tensors: Q4_K Q8_0\n"));
}

TEST(DoctorText, ShowsWhichCheckFailed) {
    pipeline::DoctorReport report;
    report.checks = {{"memory", true, "8 GB"}, {"operations", false, "SSM_SCAN x 2"}};
    EXPECT_EQ(doctor_text(report), "ok      memory      8 GB\nFAILED  operations  SSM_SCAN x 2\n");
}

TEST(EvalText, HasAColumnPerFileWithFoldersWhereNamesCollide) {
    eval::KlReport a, b;
    a.path = "x/a.gguf";
    b.path = "x/b.gguf";
    a.statistics.mean_kl = {0.012345, 0.000678};
    a.statistics.same_top = {0.9, 0.01};
    b.tokens_per_second = 321.04;
    const std::string text = eval_text({a, b});
    EXPECT_TRUE(matches(text, " a.gguf +b.gguf\n"));
    EXPECT_TRUE(matches(text, "mean KL \\(nats\\) +0.012345 \\+- 0.000678 +0.000000"));
    EXPECT_TRUE(matches(text, "same top token +90.000 \\+- 1.000 %"));
    EXPECT_TRUE(matches(text, "tokens per second +0.0 +321.0\n"));
    b.path = "y/a.gguf";
    EXPECT_TRUE(matches(eval_text({a, b}), " x/a.gguf +y/a.gguf\n"));
}

}  // namespace
}  // namespace voodoo::cli
