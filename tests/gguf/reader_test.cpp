#include "gguf/reader.h"

#include "gguf/paths.h"
#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

using Reader = GgufTest;

TEST_F(Reader, KeepsMetadataInOrderAndExactly) {
    const File file = open_bytes(rich_file());
    ASSERT_EQ(file.metadata().size(), 17u);
    EXPECT_EQ(file.metadata()[0].key, "general.architecture");
    EXPECT_EQ(file.metadata()[16].key, "a.none");
    EXPECT_EQ(file.find("a.i8")->at<int8_t>(), -100);
    EXPECT_EQ(file.find("a.i64")->at<int64_t>(), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(file.find("a.f32")->packed(), std::string_view("\x01\x00\xa0\x7f", 4));
    EXPECT_EQ(file.find("a.array")->type(), ValueType::array);
    EXPECT_EQ(file.find("a.array")->count(), 3u);
    EXPECT_EQ(file.find("a.array")->at<int16_t>(1), -2);
    EXPECT_EQ(file.find("a.tokens")->text_at(1), std::string("nul\0inside", 10));
    EXPECT_TRUE(file.find("a.bools")->at<bool>(1));
    EXPECT_EQ(file.find("a.none")->count(), 0u);
    EXPECT_EQ(file.find("absent"), nullptr);
}

TEST_F(Reader, TypedHelpersCheckTypes) {
    const File file = open_bytes(rich_file());
    EXPECT_EQ(file.architecture(), "llama");
    EXPECT_EQ(file.find_u64("a.u8"), 200u);
    EXPECT_EQ(file.find_u64("a.u64"), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(file.find_f64("a.f64"), 0.1);
    EXPECT_EQ(file.find_bool("a.bool"), true);
    EXPECT_EQ(file.find_string("a.empty"), "");
    EXPECT_EQ(file.find_string("absent"), std::nullopt);
    EXPECT_EQ(file.find_u64("absent"), std::nullopt);
    EXPECT_EQ(file.find_f64("absent"), std::nullopt);
    EXPECT_EQ(file.find_bool("absent"), std::nullopt);
    const auto bad = ErrorKind::bad_file;
    expect_error(bad, "'a.i8' is of type i8", [&] { (void)file.find_u64("a.i8"); });  // negative
    expect_error(bad, "'a.u8' is of type u8", [&] { (void)file.find_string("a.u8"); });
    expect_error(bad, "'a.u8' is of type u8", [&] { (void)file.find_f64("a.u8"); });
    expect_error(bad, "'a.u8' is of type u8", [&] { (void)file.find_bool("a.u8"); });
    expect_error(bad, "array of string", [&] { (void)file.find_string("a.tokens"); });
    expect_error(bad, "'general.architecture' is missing",
                 [&] { (void)open_bytes(Bytes().header(0, 0).str()).architecture(); });
}

TEST_F(Reader, GivesTensorsAndTheirBytes) {
    const std::string bytes = rich_file();
    const File file = open_bytes(bytes);
    ASSERT_EQ(file.tensors().size(), 4u);
    const TensorInfo* experts = file.find_tensor("experts.weight");
    ASSERT_NE(experts, nullptr);
    EXPECT_EQ(experts, &file.tensors()[2]);
    EXPECT_EQ(experts->type, GGML_TYPE_BF16);
    EXPECT_EQ(experts->n_dims, 3);
    EXPECT_EQ(experts->ne, (Shape{8, 2, 3, 1}));
    EXPECT_EQ(experts->n_elements(), 48);
    EXPECT_EQ(experts->n_rows(), 6);
    EXPECT_EQ(experts->size_bytes, 96u);
    EXPECT_EQ(experts->offset, bytes.size() - 576 + 192);
    EXPECT_EQ(as_text(file.data(*experts)), std::string_view(bytes).substr(experts->offset, 96));
    file.drop(*experts);
    EXPECT_EQ(as_text(file.data(*experts)), std::string_view(bytes).substr(experts->offset, 96));
    EXPECT_EQ(file.find_tensor("experts"), nullptr);
    EXPECT_EQ(file.find_tensor(""), nullptr);
    EXPECT_EQ(file.total_size_bytes(), bytes.size());
    ASSERT_EQ(file.paths().size(), 1u);
}

TEST_F(Reader, PointersSurviveAMove) {
    File file = open_bytes(rich_file());
    const TensorInfo* tensor = file.find_tensor("norm.weight");
    const File moved = std::move(file);
    EXPECT_EQ(moved.find_tensor("norm.weight"), tensor);
    EXPECT_EQ(moved.data(*tensor).size(), 20u);
}

TEST_F(Reader, RefusesTensorsOfAnotherFile) {
    const File file = open_bytes(rich_file());
    TensorInfo foreign = file.tensors()[0];
    foreign.shard = 1;
    expect_error(ErrorKind::internal, "another file", [&] { (void)file.data(foreign); });
    foreign.shard = 0;
    foreign.offset = file.total_size_bytes();
    expect_error(ErrorKind::internal, "another file", [&] { (void)file.data(foreign); });
}

TEST_F(Reader, SameFileSeesLinks) {
    namespace fs = std::filesystem;
    const fs::path a = save("a.gguf", "x");
    const fs::path b = save("b.gguf", "x");
    fs::create_symlink(a, dir() / "soft.gguf");
    fs::create_hard_link(a, dir() / "hard.gguf");
    fs::create_directory_symlink(dir(), dir() / "folder");
    EXPECT_TRUE(same_file(a, a));
    EXPECT_TRUE(same_file(a, dir() / "soft.gguf"));
    EXPECT_TRUE(same_file(a, dir() / "hard.gguf"));
    EXPECT_TRUE(same_file(a, dir() / "folder" / "." / "a.gguf"));
    EXPECT_FALSE(same_file(a, b));
    EXPECT_FALSE(same_file(a, dir() / "new.gguf"));
    // Neither exists: the same name in the same folder.
    EXPECT_TRUE(same_file(dir() / "new.gguf", dir() / "folder" / "new.gguf"));
    EXPECT_FALSE(same_file(dir() / "new.gguf", dir() / "newer.gguf"));
}

}  // namespace
}  // namespace voodoo::gguf::test
