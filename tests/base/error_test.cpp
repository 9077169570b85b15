#include "base/error.h"

#include <gtest/gtest.h>

#include <set>

#include "base/progress.h"

namespace voodoo {
namespace {

TEST(Error, SaysWhatWhereAndWhatToDo) {
    const Error error(ErrorKind::io, "can't open file", "a.gguf", "check the path");
    EXPECT_STREQ(error.what(), "can't open file [a.gguf] (check the path)");
    EXPECT_EQ(error.kind(), ErrorKind::io);
}

TEST(Error, EveryKindHasItsOwnName) {
    std::set<std::string_view> names;
    for (int kind = 0; kind <= static_cast<int>(ErrorKind::internal); ++kind) {
        names.insert(to_string(static_cast<ErrorKind>(kind)));
    }
    EXPECT_EQ(names.size(), static_cast<size_t>(ErrorKind::internal) + 1);
}

TEST(Error, CheckThrowsInternalWithTheCondition) {
    try {
        VOODOO_CHECK(1 + 1 == 3, "n = {}", 5);
        FAIL() << "no exception";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::internal);
        EXPECT_NE(std::string(error.what()).find("1 + 1 == 3: n = 5"), std::string::npos);
    }
}

TEST(Cancellation, ThrowsInterruptedOnlyAfterARequest) {
    Cancellation cancellation;
    EXPECT_NO_THROW(cancellation.check());
    cancellation.request();
    try {
        cancellation.check();
        FAIL() << "no exception";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::interrupted);
    }
}

}  // namespace
}  // namespace voodoo
