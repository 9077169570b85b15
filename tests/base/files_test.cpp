#include "base/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace voodoo {
namespace {

class FilesTest : public testing::Test {
protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("voodoo_files_" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::filesystem::path folder_;
};

TEST_F(FilesTest, WrittenBytesAreReadAndMappedBack) {
    const std::string bytes("a\0b\xff", 4);
    write_file_atomic(folder_ / "x", bytes);
    EXPECT_EQ(read_file(folder_ / "x"), bytes);
    const MappedFile mapped(folder_ / "x");
    ASSERT_EQ(mapped.bytes().size(), 4u);
    EXPECT_EQ(mapped.bytes()[3], std::byte{0xff});
}

TEST_F(FilesTest, UncommittedFileLeavesNothingBehindAndKeepsTheOldOne) {
    write_file_atomic(folder_ / "x", "old");
    {
        AtomicFile file(folder_ / "x");
        file.write("new");
    }
    EXPECT_EQ(read_file(folder_ / "x"), "old");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FilesTest, MissingFileIsAnIoErrorThatNamesThePath) {
    try {
        read_file(folder_ / "missing");
        FAIL() << "no exception";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io);
        EXPECT_NE(error.where().find("missing"), std::string::npos);
    }
    EXPECT_THROW(MappedFile(folder_ / "missing"), Error);
    EXPECT_THROW(AtomicFile(folder_ / "no" / "such" / "folder"), Error);
    EXPECT_THROW(MappedFile{folder_}, Error);
}

TEST_F(FilesTest, EmptyFileMapsToNothing) {
    std::ofstream(folder_ / "empty").close();
    EXPECT_EQ(MappedFile(folder_ / "empty").bytes().size(), 0u);
}

TEST_F(FilesTest, SecondLockIsRefusedUntilTheFirstIsGone) {
    {
        const FileLock first(folder_ / "lock");
        EXPECT_THROW(FileLock(folder_ / "lock"), Error);
    }
    EXPECT_NO_THROW(FileLock(folder_ / "lock"));
}

}  // namespace
}  // namespace voodoo
