#include "tools/tiny_text.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "model/tiny_model.h"

namespace voodoo::tools {
namespace {

std::string numbered_lines(int n) {
    std::string text;
    for (int i = 0; i < n; ++i) {
        text += "line number " + std::to_string(i) + "\n";
    }
    return text;
}

TEST(TinyText, BlocksAreWholeLinesThatTogetherAreTheText) {
    const std::string text = numbered_lines(500) + "no newline at the end";
    std::string joined;
    const auto blocks = cut_blocks(text, 100);
    for (size_t i = 0; i < blocks.size(); ++i) {
        if (i + 1 < blocks.size()) {
            EXPECT_GE(blocks[i].size(), 100U);
            EXPECT_LT(blocks[i].size(), 120U);
            EXPECT_EQ(blocks[i].back(), '\n');
        }
        joined += blocks[i];
    }
    EXPECT_EQ(joined, text);
}

TEST(TinyText, HeldOutBlocksAreATenthAndNeverTrainedOn) {
    const std::string text = numbered_lines(20000);
    const TextSplit split = split_text(text, 10);
    EXPECT_EQ(split.train.size() + split.valid.size(), text.size());
    EXPECT_NEAR(static_cast<double>(split.valid.size()), 0.1 * static_cast<double>(text.size()),
                5000.0);
    EXPECT_NE(split.valid.find("line number 0\n"), std::string::npos);
    EXPECT_EQ(split.train.find("line number 0\n"), std::string::npos);
}

TEST(TinyText, ExcerptKeepsToItsSizeAndSpansTheText) {
    const std::string text = numbered_lines(20000);
    const std::string part = excerpt(text, 65536);
    EXPECT_LE(part.size(), 65536U);
    EXPECT_GE(part.size(), 65536U - 2 * 4200U);
    EXPECT_NE(part.find("line number 0\n"), std::string::npos);
    EXPECT_NE(part.find("line number 18"), std::string::npos);
}

TEST(TinyText, FilesAreSortedAndOnlyTextIsTakenFromFolders) {
    testing::TempFolder folder;
    for (const char* name : {"b.md", "a.cpp", "c.gguf", "Z.h"}) {
        std::ofstream(folder / name) << name;
    }
    const std::filesystem::path root = (folder / "a.cpp").parent_path();
    const auto files = list_text_files({root, folder / "a.cpp"});
    ASSERT_EQ(files.size(), 3U);
    EXPECT_EQ(read_texts(files), "Z.h\na.cpp\nb.md\n");
    EXPECT_THROW(list_text_files({folder / "missing"}), Error);
}

}  // namespace
}  // namespace voodoo::tools
