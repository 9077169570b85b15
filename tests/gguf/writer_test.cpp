#include "gguf/writer.h"

#include "base/files.h"
#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

using WriterFile = GgufTest;

void copy_tensors(const File& from, Writer& to) {
    for (const TensorInfo& tensor : from.tensors()) {
        to.write_tensor(tensor.name, from.data(tensor));
    }
}

size_t n_files(const std::filesystem::path& dir) {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir), {}));
}

TEST_F(WriterFile, RewritesAFileByteForByte) {
    const std::string bytes = rich_file();
    const File file = open_bytes(bytes);
    Writer writer(dir() / "copy.gguf", file.metadata(), planned_tensors(file.tensors()));
    EXPECT_EQ(writer.planned_size_bytes(), bytes.size());
    EXPECT_EQ(file_size_bytes(file.metadata(), planned_tensors(file.tensors())), bytes.size());
    copy_tensors(file, writer);
    EXPECT_FALSE(std::filesystem::exists(dir() / "copy.gguf"));
    writer.commit();
    EXPECT_EQ(read_file(dir() / "copy.gguf"), bytes);
}

TEST_F(WriterFile, TakesTensorsInPieces) {
    const std::string bytes = rich_file();
    const File file = open_bytes(bytes);
    Writer writer(dir() / "copy.gguf", file.metadata(), planned_tensors(file.tensors()));
    for (const TensorInfo& tensor : file.tensors()) {
        writer.begin_tensor(tensor.name);
        const std::span<const std::byte> data = file.data(tensor);
        writer.write(data.first(1));
        writer.write({});
        writer.write(data.subspan(1));
    }
    writer.commit();
    EXPECT_EQ(read_file(dir() / "copy.gguf"), bytes);
}

TEST_F(WriterFile, RoundTripsEveryScalarType) {
    const std::vector<float> floats = {1.5f, -0.0f};
    const std::vector<std::string> texts = {"", "x"};
    Metadata metadata = {
        {"u8", Value::scalar<uint8_t>(1)},
        {"i8", Value::scalar<int8_t>(-1)},
        {"u16", Value::scalar<uint16_t>(2)},
        {"i16", Value::scalar<int16_t>(-2)},
        {"u32", Value::scalar<uint32_t>(3)},
        {"i32", Value::scalar<int32_t>(-3)},
        {"u64", Value::scalar<uint64_t>(4)},
        {"i64", Value::scalar<int64_t>(-4)},
        {"f32", Value::scalar(0.5f)},
        {"f64", Value::scalar(0.25)},
        {"bool", Value::scalar(true)},
        {"text", Value::text("abc")},
        {"floats", Value::array<float>(floats)},
        {"texts", Value::texts(texts)},
    };
    Writer writer(dir() / "m.gguf", metadata, {});
    writer.commit();
    EXPECT_EQ(File::open(dir() / "m.gguf").metadata(), metadata);
    set_value(metadata, "u8", Value::scalar<uint8_t>(9));
    EXPECT_EQ(metadata[0].value.at<uint8_t>(), 9);
    EXPECT_TRUE(remove_value(metadata, "i8"));
    EXPECT_FALSE(remove_value(metadata, "i8"));
    EXPECT_EQ(metadata.size(), 13u);
}

TEST_F(WriterFile, RefusesWrongOrderAndSizes) {
    const File file = open_bytes(rich_file());
    const auto make = [&] {
        return Writer(dir() / "copy.gguf", file.metadata(), planned_tensors(file.tensors()));
    };
    const auto bug = ErrorKind::internal;
    const std::vector<std::byte> many(10000);
    const std::span<const std::byte> bytes(many);
    expect_error(bug, "where 'token_embd.weight' is planned",
                 [&] { make().begin_tensor("norm.weight"); });
    expect_error(bug, "outside a tensor", [&] { make().write(bytes.first(1)); });
    expect_error(bug, "more than 136 bytes",
                 [&] { make().write_tensor("token_embd.weight", bytes.first(137)); });
    expect_error(bug, "has 135 bytes, not 136",
                 [&] { make().write_tensor("token_embd.weight", bytes.first(135)); });
    expect_error(bug, "tensors are missing", [&] {
        Writer writer = make();
        writer.write_tensor("token_embd.weight", bytes.first(136));
        writer.commit();
    });
    expect_error(bug, "after the last", [&] {
        Writer writer = make();
        copy_tensors(file, writer);
        writer.begin_tensor("output.weight");
    });
    EXPECT_EQ(n_files(dir()), 1u);  // nothing but the source is left
}

TEST_F(WriterFile, LeavesNothingWithoutCommit) {
    const File file = open_bytes(rich_file());
    {
        Writer writer(dir() / "copy.gguf", file.metadata(), planned_tensors(file.tensors()));
        Writer shards =
            Writer::split(dir() / "copy", file.metadata(), planned_tensors(file.tensors()), 200);
        copy_tensors(file, writer);
        copy_tensors(file, shards);
        EXPECT_GT(n_files(dir()), 3u);
    }
    EXPECT_EQ(n_files(dir()), 1u);
}

TEST_F(WriterFile, NamesTheFolderThatIsMissing) {
    expect_error(ErrorKind::io, "nowhere", [&] { Writer(dir() / "nowhere" / "m.gguf", {}, {}); });
}

}  // namespace
}  // namespace voodoo::gguf::test
