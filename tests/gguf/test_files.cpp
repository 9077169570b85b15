#include "test_files.h"

#include <unistd.h>

#include <limits>

#include "base/files.h"

namespace voodoo::gguf::test {

void GgufTest::SetUp() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(::testing::TempDir()) /
           (std::string("gguf_") + info->test_suite_name() + "_" + info->name() + "_" +
            std::to_string(::getpid()));
    std::filesystem::create_directories(dir_);
}

void GgufTest::TearDown() {
    std::filesystem::remove_all(dir_);
}

std::filesystem::path GgufTest::save(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path path = dir_ / name;
    write_file_atomic(path, bytes);
    return path;
}

void GgufTest::expect_bad_file(std::string_view bytes, std::string_view part) const {
    expect_error(ErrorKind::bad_file, part, [&] { open_bytes(bytes); });
    expect_error(ErrorKind::bad_file, "model.gguf", [&] { open_bytes(bytes); });
}

std::string rich_file() {
    Bytes b;
    b.header(4, 17);
    b.key("general.architecture", ValueType::string).text("llama");
    b.key("a.u8", ValueType::u8).number<uint8_t>(200);
    b.key("a.i8", ValueType::i8).number<int8_t>(-100);
    b.key("a.u16", ValueType::u16).number<uint16_t>(60000);
    b.key("a.i16", ValueType::i16).number<int16_t>(-30000);
    b.key("a.u32", ValueType::u32).number<uint32_t>(4000000000);
    b.key("a.i32", ValueType::i32).number<int32_t>(-2000000000);
    b.key("a.u64", ValueType::u64).number<uint64_t>(std::numeric_limits<uint64_t>::max());
    b.key("a.i64", ValueType::i64).number<int64_t>(std::numeric_limits<int64_t>::min());
    b.key("a.f32", ValueType::f32).number<uint32_t>(0x7fa00001);  // a NaN with a payload
    b.key("a.f64", ValueType::f64).number<double>(0.1);
    b.key("a.bool", ValueType::boolean).number<uint8_t>(1);
    b.key("a.empty", ValueType::string).text("");
    b.key("a.array", ValueType::array).number(ValueType::i16).number<uint64_t>(3);
    b.number<int16_t>(1).number<int16_t>(-2).number<int16_t>(3);
    b.key("a.tokens", ValueType::array).number(ValueType::string).number<uint64_t>(3);
    b.text("<s>").text(std::string_view("nul\0inside", 10)).text("\xe2\x96\x81the");
    b.key("a.bools", ValueType::array).number(ValueType::boolean).number<uint64_t>(2);
    b.number<uint8_t>(0).number<uint8_t>(1);
    b.key("a.none", ValueType::array).number(ValueType::string).number<uint64_t>(0);
    b.tensor("token_embd.weight", {32, 4}, GGML_TYPE_Q8_0, 0);   // 4 * 34 = 136 bytes
    b.tensor("norm.weight", {5}, GGML_TYPE_F32, 160);            // 20 bytes
    b.tensor("experts.weight", {8, 2, 3}, GGML_TYPE_BF16, 192);  // 96 bytes
    b.tensor("output.weight", {256, 2}, GGML_TYPE_Q4_K, 288);    // 288 bytes
    b.pad();
    const size_t data = b.str().size();
    for (size_t i = 0; i < 576; ++i) {
        const bool is_padding = (i >= 136 && i < 160) || (i >= 180 && i < 192);
        b.number(static_cast<uint8_t>(is_padding ? 0 : i * 7 + 1));
    }
    EXPECT_EQ(b.str().size(), data + 576);
    return b.str();
}

std::string_view as_text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace voodoo::gguf::test
