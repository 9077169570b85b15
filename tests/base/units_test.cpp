#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace voodoo {
namespace {

TEST(Units, ParsesSizesWithDecimalAndBinaryUnits) {
    EXPECT_EQ(parse_size_bytes("95MB"), 95000000u);
    EXPECT_EQ(parse_size_bytes("4.2GiB"), 4509715660u);
    EXPECT_EQ(parse_size_bytes(" 12.5 kB "), 12500u);
    EXPECT_EQ(parse_size_bytes("1000000"), 1000000u);
    EXPECT_EQ(parse_size_bytes("7B"), 7u);
    EXPECT_EQ(parse_size_bytes("1mib"), 1048576u);
}

TEST(Units, RefusesWhatIsNotASize) {
    for (const char* text :
         {"", "MB", "4 bits", "4.2XB", "-1MB", "nan", "inf", "1e300GB", "9e99", "5b", "1 2MB"}) {
        try {
            parse_size_bytes(text);
            FAIL() << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage) << text;
        }
    }
}

TEST(Units, FormatsWithThreeDigits) {
    EXPECT_EQ(format_size(999), "999 B");
    EXPECT_EQ(format_size(1234567890), "1.23 GB");
    EXPECT_EQ(format_size(95000000), "95.0 MB");
    EXPECT_EQ(format_duration(3725), "1:02:05");
    EXPECT_EQ(format_duration(65), "1:05");
    EXPECT_EQ(format_duration(3.21), "3.2 s");
}

}  // namespace
}  // namespace voodoo
