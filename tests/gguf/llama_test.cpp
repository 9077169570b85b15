// Against the pinned llama.cpp: its reader, its writer and its tools, on a model that its own
// generator makes.
#include <cstdlib>
#include <memory>

#include "base/files.h"
#include "gguf.h"
#include "gguf/paths.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

namespace fs = std::filesystem;

struct GgufDeleter {
    void operator()(gguf_context* context) const { gguf_free(context); }
};
using GgufContext = std::unique_ptr<gguf_context, GgufDeleter>;

GgufContext open_with_ggml(const fs::path& path) {
    return GgufContext(gguf_init_from_file(path.c_str(), {true, nullptr}));
}

class Llama : public GgufTest {
protected:
    /// Runs one of llama.cpp's tools; its output is shown if it fails.
    void run(const std::string& tool, const std::string& arguments) const {
        const fs::path binary = fs::path(VOODOO_LLAMA_BIN_DIR) / tool;
        ASSERT_TRUE(fs::exists(binary)) << binary;
        const fs::path log = dir() / "log.txt";
        const std::string command =
            fmt::format("{} {} >{} 2>&1", quoted(binary), arguments, quoted(log));
        ASSERT_EQ(std::system(command.c_str()), 0) << command << "\n" << read_file(log);
    }
    static std::string quoted(const fs::path& path) { return fmt::format("'{}'", path.string()); }

    /// F32 models of the llama architecture: llama-dense.gguf and llama-moe.gguf in dir().
    void make_models() const {
        run("test-llama-archs", fmt::format("-a llama -s 7 -o {}", quoted(dir())));
    }
    fs::path dense() const { return dir() / "llama-dense.gguf"; }

    static void rewrite(const fs::path& from, const fs::path& to) {
        const File file = File::open(from);
        Writer writer(to, file.metadata(), planned_tensors(file.tensors()));
        for (const TensorInfo& tensor : file.tensors()) {
            writer.write_tensor(tensor.name, file.data(tensor));
        }
        writer.commit();
        EXPECT_EQ(file_size_bytes(file.metadata(), planned_tensors(file.tensors())),
                  fs::file_size(from));
    }
};

/// ggml sees what we see: keys and their types, tensors, shapes, offsets and sizes.
void expect_same_as_ggml(const fs::path& path) {
    const File file = File::open(path);
    const GgufContext theirs = open_with_ggml(path);
    ASSERT_NE(theirs, nullptr) << path;
    EXPECT_EQ(gguf_get_alignment(theirs.get()), file.alignment());
    ASSERT_EQ(gguf_get_n_kv(theirs.get()), static_cast<int64_t>(file.metadata().size()));
    for (int64_t i = 0; i < gguf_get_n_kv(theirs.get()); ++i) {
        const KeyValue& kv = file.metadata()[static_cast<size_t>(i)];
        EXPECT_EQ(kv.key, gguf_get_key(theirs.get(), i));
        EXPECT_EQ(static_cast<int>(kv.value.type()), gguf_get_kv_type(theirs.get(), i)) << kv.key;
        if (kv.value.is_array()) {
            EXPECT_EQ(kv.value.count(), gguf_get_arr_n(theirs.get(), i)) << kv.key;
        }
    }
    ASSERT_EQ(gguf_get_n_tensors(theirs.get()), static_cast<int64_t>(file.tensors().size()));
    for (int64_t i = 0; i < gguf_get_n_tensors(theirs.get()); ++i) {
        const TensorInfo& ours = file.tensors()[static_cast<size_t>(i)];
        EXPECT_EQ(ours.name, gguf_get_tensor_name(theirs.get(), i));
        EXPECT_EQ(ours.type, gguf_get_tensor_type(theirs.get(), i)) << ours.name;
        EXPECT_EQ(ours.size_bytes, gguf_get_tensor_size(theirs.get(), i)) << ours.name;
        EXPECT_EQ(ours.offset,
                  gguf_get_data_offset(theirs.get()) + gguf_get_tensor_offset(theirs.get(), i))
            << ours.name;
        const int64_t* ne = gguf_get_tensor_ne(theirs.get(), i);
        EXPECT_EQ(ours.ne, (Shape{ne[0], ne[1], ne[2], ne[3]})) << ours.name;
    }
}

TEST_F(Llama, ReadersAgreeOnGeneratedAndHandMadeFiles) {
    make_models();
    expect_same_as_ggml(dense());
    expect_same_as_ggml(dir() / "llama-moe.gguf");
    expect_same_as_ggml(save("rich.gguf", rich_file()));
}

TEST_F(Llama, RewritesWhatGgufWriteToFileWrote) {
    make_models();
    for (const char* name : {"llama-dense.gguf", "llama-moe.gguf"}) {
        rewrite(dir() / name, dir() / "copy.gguf");
        EXPECT_TRUE(read_file(dir() / "copy.gguf") == read_file(dir() / name)) << name;
    }
}

TEST_F(Llama, RewritesWhatLlamaQuantizeWrote) {
    make_models();
    const fs::path quantized = dir() / "q.gguf";
    run("llama-quantize", fmt::format("{} {} Q4_K_M 2", quoted(dense()), quoted(quantized)));
    expect_same_as_ggml(quantized);
    rewrite(quantized, dir() / "copy.gguf");
    EXPECT_TRUE(read_file(dir() / "copy.gguf") == read_file(quantized));
}

TEST_F(Llama, SplitsAsLlamaGgufSplitDoes) {
    make_models();
    run("llama-gguf-split", fmt::format("--split --split-max-size 1M {} {}", quoted(dense()),
                                        quoted(dir() / "theirs")));
    const File file = File::open(dense());
    Writer writer = Writer::split(dir() / "ours", file.metadata(), planned_tensors(file.tensors()),
                                  1000 * 1000);
    for (const TensorInfo& tensor : file.tensors()) {
        writer.write_tensor(tensor.name, file.data(tensor));
    }
    writer.commit();
    const auto n_shards = static_cast<uint32_t>(writer.paths().size());
    ASSERT_GT(n_shards, 2u);
    for (uint32_t i = 0; i < n_shards; ++i) {
        const fs::path theirs = shard_path(dir() / "theirs", i, n_shards);
        ASSERT_TRUE(fs::exists(theirs)) << theirs;
        EXPECT_TRUE(read_file(writer.paths()[i]) == read_file(theirs)) << theirs;
        EXPECT_NE(open_with_ggml(writer.paths()[i]), nullptr) << theirs;
    }

    const fs::path merged = dir() / "merged.gguf";
    run("llama-gguf-split",
        fmt::format("--merge {} {}", quoted(writer.paths()[0]), quoted(merged)));
    const File back = File::open(merged);
    ASSERT_EQ(back.tensors().size(), file.tensors().size());
    for (const TensorInfo& tensor : file.tensors()) {
        const TensorInfo* copy = back.find_tensor(tensor.name);
        ASSERT_NE(copy, nullptr) << tensor.name;
        EXPECT_TRUE(as_text(back.data(*copy)) == as_text(file.data(tensor))) << tensor.name;
    }
}

}  // namespace
}  // namespace voodoo::gguf::test
