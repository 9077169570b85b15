#include <algorithm>

#include "base/files.h"
#include "gguf/paths.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

namespace fs = std::filesystem;

class Split : public GgufTest {
protected:
    /// rich_file cut into three shards named m-0000x-of-00003.gguf.
    std::vector<fs::path> write_shards(const File& file) const {
        Writer writer =
            Writer::split(dir() / "m", file.metadata(), planned_tensors(file.tensors()), 256);
        for (const TensorInfo& tensor : file.tensors()) {
            writer.write_tensor(tensor.name, file.data(tensor));
        }
        writer.commit();
        uint64_t size_bytes = 0;
        for (const fs::path& path : writer.paths()) {
            size_bytes += fs::file_size(path);
        }
        EXPECT_EQ(writer.planned_size_bytes(), size_bytes);
        return writer.paths();
    }
    /// Replaces the first occurrence of `from` in a file.
    static void patch(const fs::path& path, const std::string& from, const std::string& to) {
        std::string bytes = read_file(path);
        const size_t at = bytes.find(from);
        ASSERT_NE(at, std::string::npos);
        bytes.replace(at, from.size(), to);
        write_file_atomic(path, bytes);
    }
    static std::string pair(std::string_view key, uint16_t value) {
        return Bytes().key(key, ValueType::u16).number(value).str();
    }
};

TEST_F(Split, ReadsBackFromAnyShard) {
    const File source = open_bytes(rich_file());
    const std::vector<fs::path> paths = write_shards(source);
    ASSERT_EQ(paths.size(), 3u);
    EXPECT_EQ(paths[1].filename(), "m-00002-of-00003.gguf");
    for (const fs::path& path : paths) {
        const File model = File::open(path);
        EXPECT_EQ(model.paths(), paths);
        EXPECT_EQ(without_split_keys(model.metadata()), source.metadata());
        ASSERT_EQ(model.tensors().size(), source.tensors().size());
        for (size_t i = 0; i < model.tensors().size(); ++i) {
            const TensorInfo& tensor = model.tensors()[i];
            EXPECT_EQ(tensor.name, source.tensors()[i].name);
            EXPECT_EQ(as_text(model.data(tensor)), as_text(source.data(source.tensors()[i])));
            EXPECT_EQ(model.find_tensor(tensor.name), &tensor);
        }
        EXPECT_EQ(model.tensors().back().shard, 2);
    }
}

TEST_F(Split, MergesToTheBytesItCameFrom) {
    const std::string bytes = rich_file();
    const File model = File::open(write_shards(open_bytes(bytes))[0]);
    Writer writer(dir() / "merged.gguf", without_split_keys(model.metadata()),
                  planned_tensors(model.tensors()));
    for (const TensorInfo& tensor : model.tensors()) {
        writer.write_tensor(tensor.name, model.data(tensor));
    }
    writer.commit();
    EXPECT_EQ(read_file(dir() / "merged.gguf"), bytes);
}

TEST_F(Split, FindsShardsInTheWorkingFolder) {
    const std::vector<fs::path> paths = write_shards(open_bytes(rich_file()));
    const fs::path before = fs::current_path();
    fs::current_path(dir());
    EXPECT_EQ(File::open("m-00003-of-00003.gguf").tensors().size(), 4u);
    fs::current_path(before);
}

TEST_F(Split, NamesTheMissingShard) {
    const std::vector<fs::path> paths = write_shards(open_bytes(rich_file()));
    fs::remove(paths[0]);
    expect_error(ErrorKind::io, "m-00001-of-00003.gguf", [&] { File::open(paths[1]); });
    fs::remove(paths[1]);
    expect_error(ErrorKind::io, "2 of the model's 3 shards missing", [&] { File::open(paths[2]); });
}

TEST_F(Split, RefusesShardsUnderOtherNames) {
    const std::vector<fs::path> paths = write_shards(open_bytes(rich_file()));
    fs::copy_file(paths[0], dir() / "renamed.gguf");
    expect_error(ErrorKind::bad_file, "its name is not of the form",
                 [&] { File::open(dir() / "renamed.gguf"); });
    fs::copy_file(paths[1], paths[0], fs::copy_options::overwrite_existing);
    expect_error(ErrorKind::bad_file, "says it is shard 1 of 3", [&] { File::open(paths[2]); });
    expect_error(ErrorKind::bad_file, "says it is shard 1 of 3", [&] { File::open(paths[0]); });
}

TEST_F(Split, RefusesNumbersThatDoNotMatch) {
    const File source = open_bytes(rich_file());
    std::vector<fs::path> paths = write_shards(source);
    patch(paths[1], pair(kKeySplitCount, 3), pair(kKeySplitCount, 4));
    expect_error(ErrorKind::bad_file, "m-00002", [&] { File::open(paths[0]); });

    paths = write_shards(source);
    const auto total = [](int32_t n) {
        return Bytes().key(kKeySplitTensors, ValueType::i32).number(n).str();
    };
    patch(paths[0], total(4), total(5));
    expect_error(ErrorKind::bad_file, "'split.tensors.count' is 5, but the shards hold 4",
                 [&] { File::open(paths[2]); });
    patch(paths[0], total(5), total(-1));
    expect_error(ErrorKind::bad_file, "no integer", [&] { File::open(paths[0]); });
}

TEST_F(Split, RefusesATensorInTwoShards) {
    const auto shard = [](uint16_t no) {
        return Bytes()
            .header(1, 3)
            .raw(pair(kKeySplitNo, no))
            .raw(pair(kKeySplitCount, 2))
            .raw(Bytes().key(kKeySplitTensors, ValueType::i32).number<int32_t>(2).str())
            .tensor("twin", {8}, GGML_TYPE_F32, 0)
            .pad()
            .zeros(32)
            .str();
    };
    save("t-00001-of-00002.gguf", shard(0));
    expect_error(ErrorKind::bad_file, "tensor 'twin' is in two shards",
                 [&] { File::open(save("t-00002-of-00002.gguf", shard(1))); });
}

TEST_F(Split, AMergedFileSaysZeroShards) {
    const File file = open_bytes(Bytes().header(0, 1).raw(pair(kKeySplitCount, 0)).str());
    EXPECT_EQ(file.paths().size(), 1u);
}

TEST_F(Split, ReplacesTheShardsOfAnEarlierRun) {
    const File source = open_bytes(rich_file());
    write_shards(source);
    const std::vector<fs::path> paths = write_shards(source);
    EXPECT_EQ(File::open(paths[0]).tensors().size(), 4u);
}

TEST(ShardName, ParsesLlamaCppNamesOnly) {
    const auto name = find_shard_name("/models/a-b-00002-of-00010.gguf");
    ASSERT_TRUE(name.has_value());
    EXPECT_EQ(name->prefix, "/models/a-b");
    EXPECT_EQ(name->shard, 1u);
    EXPECT_EQ(name->n_shards, 10u);
    EXPECT_EQ(shard_path(name->prefix, 1, 10), "/models/a-b-00002-of-00010.gguf");
    for (const char* bad :
         {"a.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a-1-of-2.gguf",
          "a-000001-of-00002.gguf", "-00001-of-00002.gguf", "a-00001-of-00002.bin",
          "a-0000x-of-00002.gguf", "-of-.gguf", "a-00001-of-99999999999.gguf"}) {
        EXPECT_FALSE(find_shard_name(bad).has_value()) << bad;
    }
}

}  // namespace
}  // namespace voodoo::gguf::test
