#include "quant/imatrix.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "gguf.h"
#include "test_data.h"

namespace voodoo::quant {
namespace {

Imatrix sample() {
    Imatrix imatrix;
    imatrix.datasets = {"a.txt", "b.txt"};
    imatrix.chunk_count = 3;
    imatrix.chunk_size = 512;
    imatrix.entries["blk.0.ffn_up.weight"] = {random_importance(64, 1), {1536}};
    imatrix.entries["blk.0.ffn_up_exps.weight"] = {random_importance(96, 2), {100, 0, 1436}};
    imatrix.entries["output.weight"] = {random_importance(64, 3), {1533}};
    imatrix.entries["output.weight"].sums[7] = 0.0f;
    return imatrix;
}

void append(std::string& bytes, int32_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// The old format, as llama-imatrix --output-format dat writes it.
std::string legacy_bytes(int32_t n_calls = 3) {
    std::string bytes;
    append(bytes, 2);
    for (const char* name : {"blk.0.ffn_up.weight", "output.weight"}) {
        append(bytes, static_cast<int32_t>(std::strlen(name)));
        bytes += name;
        append(bytes, n_calls);
        append(bytes, 32);
        const std::vector<float> values = random_importance(32, name[0]);
        bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    append(bytes, 3);
    append(bytes, 5);
    bytes += "a.txt";
    return bytes;
}

ErrorKind error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.kind();
    }
    ADD_FAILURE() << "no error";
    return ErrorKind::internal;
}

TEST(Imatrix, SurvivesWritingAndReadingExactly) {
    const ScratchFolder folder;
    const Imatrix written = sample();
    write_imatrix(written, folder.path() / "i.gguf");
    const Imatrix read = read_imatrix(folder.path() / "i.gguf");
    EXPECT_FALSE(read.is_legacy);
    EXPECT_EQ(read.datasets, written.datasets);
    EXPECT_EQ(read.chunk_count, 3u);
    EXPECT_EQ(read.chunk_size, 512u);
    ASSERT_EQ(read.entries.size(), 3u);
    for (const auto& [name, entry] : written.entries) {
        EXPECT_EQ(read.entries.at(name).sums, entry.sums) << name;
        EXPECT_EQ(read.entries.at(name).counts, entry.counts) << name;
    }
}

TEST(Imatrix, FileIsWhatGgmlsOwnReaderExpects) {
    const ScratchFolder folder;
    const std::string path = (folder.path() / "i.gguf").string();
    write_imatrix(sample(), path);
    ggml_context* ctx = nullptr;
    gguf_context* file = gguf_init_from_file(path.c_str(), {false, &ctx});
    ASSERT_NE(file, nullptr);
    EXPECT_STREQ(gguf_get_val_str(file, gguf_find_key(file, "general.type")), "imatrix");
    EXPECT_EQ(gguf_get_val_u32(file, gguf_find_key(file, "imatrix.chunk_size")), 512u);
    const ggml_tensor* sums = ggml_get_tensor(ctx, "blk.0.ffn_up_exps.weight.in_sum2");
    const ggml_tensor* counts = ggml_get_tensor(ctx, "blk.0.ffn_up_exps.weight.counts");
    ASSERT_NE(sums, nullptr);
    ASSERT_NE(counts, nullptr);
    EXPECT_EQ(sums->ne[0], 32);
    EXPECT_EQ(sums->ne[1], 3);
    EXPECT_EQ(counts->ne[0], 1);
    EXPECT_EQ(counts->ne[1], 3);
    EXPECT_EQ(static_cast<const float*>(counts->data)[2], 1436.0f);
    EXPECT_EQ(
        std::memcmp(sums->data, sample().entries["blk.0.ffn_up_exps.weight"].sums.data(), 96 * 4),
        0);
    gguf_free(file);
    ggml_free(ctx);
}

TEST(Imatrix, ImportanceIsTheSumDividedInFloatAndOneForUnroutedExperts) {
    const Imatrix imatrix = sample();
    const Importance dense = imatrix.importance("output.weight");
    EXPECT_TRUE(dense.unrouted.empty());
    for (size_t i = 0; i < dense.values.size(); ++i) {
        EXPECT_EQ(dense.values[i], imatrix.entries.at("output.weight").sums[i] / 1533.0f);
    }
    EXPECT_EQ(dense.values[7], 0.0f);
    const Importance experts = imatrix.importance("blk.0.ffn_up_exps.weight");
    const std::vector<float>& sums = imatrix.entries.at("blk.0.ffn_up_exps.weight").sums;
    EXPECT_EQ(experts.unrouted, std::vector<int64_t>{1});
    for (size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(experts.values[i], sums[i] / 100.0f);
        EXPECT_EQ(experts.values[32 + i], 1.0f);
        EXPECT_EQ(experts.values[64 + i], sums[64 + i] / 1436.0f);
    }
    EXPECT_TRUE(imatrix.importance("no.such.tensor").values.empty());
}

TEST(Imatrix, ReadsTheOldFormatAndConvertsItWithoutChangingImportances) {
    const ScratchFolder folder;
    for (const int32_t n_calls : {3, 0}) {
        write_file_atomic(folder.path() / "i.dat", legacy_bytes(n_calls));
        const Imatrix old = read_imatrix(folder.path() / "i.dat");
        EXPECT_TRUE(old.is_legacy);
        EXPECT_EQ(old.chunk_count, 3u);
        EXPECT_EQ(old.datasets, std::vector<std::string>{"a.txt"});
        const Importance importance = old.importance("output.weight");
        ASSERT_EQ(importance.values.size(), 32u);
        const std::vector<float> sums = random_importance(32, 'o');
        const float divisor = n_calls > 0 ? static_cast<float>(n_calls) : 1.0f;
        for (size_t i = 0; i < 32; ++i) EXPECT_EQ(importance.values[i], sums[i] / divisor);
        write_imatrix(old, folder.path() / "i.gguf");
        const Imatrix converted = read_imatrix(folder.path() / "i.gguf");
        EXPECT_FALSE(converted.is_legacy);
        EXPECT_EQ(converted.importance("output.weight").values, importance.values);
    }
    // The first versions wrote nothing after the entries.
    const std::string bytes = legacy_bytes();
    write_file_atomic(folder.path() / "short.dat", bytes.substr(0, bytes.size() - 13));
    EXPECT_EQ(read_imatrix(folder.path() / "short.dat").chunk_count, 0u);
}

TEST(Imatrix, RefusesNonFiniteAndNegativeValues) {
    const ScratchFolder folder;
    const std::filesystem::path path = folder.path() / "i.gguf";
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -1.0f, std::numeric_limits<float>::infinity()}) {
        Imatrix imatrix = sample();
        imatrix.entries["output.weight"].sums[3] = bad;
        write_imatrix(imatrix, path);
        EXPECT_EQ(error_of([&] { read_imatrix(path); }), ErrorKind::bad_file) << bad;
    }
    Imatrix imatrix = sample();
    imatrix.entries["output.weight"].counts[0] = -5;
    write_imatrix(imatrix, path);
    EXPECT_EQ(error_of([&] { read_imatrix(path); }), ErrorKind::bad_file);
    EXPECT_EQ(error_of([&] { read_imatrix(folder.path() / "absent"); }), ErrorKind::io);
    write_file_atomic(path, "");
    EXPECT_EQ(error_of([&] { read_imatrix(path); }), ErrorKind::bad_file);
}

TEST(CheckImatrix, ListsMismatchesAndMissingEntries) {
    Imatrix imatrix = sample();
    std::map<std::string, MatrixShape> shapes = {{"blk.0.ffn_up.weight", {64, 8, 1}},
                                                 {"blk.0.ffn_up_exps.weight", {32, 8, 3}},
                                                 {"blk.1.ffn_up.weight", {64, 8, 1}}};
    EXPECT_EQ(check_imatrix(imatrix, shapes), std::vector<std::string>{"blk.1.ffn_up.weight"});
    shapes["output.weight"] = {128, 8, 1};
    try {
        check_imatrix(imatrix, shapes);
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::bad_file);
        EXPECT_NE(error.message().find("output.weight has 64 values instead of 128"),
                  std::string::npos);
    }
    shapes.erase("output.weight");
    imatrix.entries["token_embd.weight"] = {{1.0f}, {1}};
    shapes["token_embd.weight"] = {64, 8, 1};
    EXPECT_EQ(check_imatrix(imatrix, shapes).size(), 2u);
    EXPECT_FALSE(imatrix.entries.contains("token_embd.weight"));
}

/// Reads bytes as a file; anything but success, bad_file and io escapes and fails the test.
bool reads(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;  // without the fsync of our own writer
    try {
        const Imatrix imatrix = read_imatrix(path);
        for (const auto& [name, entry] : imatrix.entries) imatrix.importance(name);
        return true;
    } catch (const Error& error) {
        EXPECT_TRUE(error.kind() == ErrorKind::bad_file) << error.what();
        return false;
    }
}

TEST(Imatrix, HostileFilesAreErrorsNeverCrashes) {
    const ScratchFolder folder;
    const std::filesystem::path path = folder.path() / "i.gguf";
    write_imatrix(sample(), path);
    const std::string good_gguf = read_file(path);
    const std::string good_legacy = legacy_bytes();
    Random random(1, "flips");
    for (const std::string& good : {good_gguf, good_legacy}) {
        ASSERT_TRUE(reads(path, good));
        for (size_t n = 0; n < good.size(); n += 1 + n / 40) reads(path, good.substr(0, n));
        int n_refused = 0;
        for (int i = 0; i < 400; ++i) {
            std::string bytes = good;
            // Most flips into the front part, where the structure is.
            const size_t limit = i % 4 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 500);
            for (uint64_t k = 0; k <= random.below(3); ++k) {
                bytes[random.below(limit)] = static_cast<char>(random.bits());
            }
            n_refused += reads(path, bytes) ? 0 : 1;
        }
        EXPECT_GT(n_refused, 50);
    }
}

TEST(ImportanceHash, TellsVectorsApart) {
    EXPECT_EQ(importance_hash({}), "none");
    EXPECT_EQ(importance_hash({1.0f, 2.0f}), importance_hash({1.0f, 2.0f}));
    EXPECT_NE(importance_hash({1.0f, 2.0f}), importance_hash({2.0f, 1.0f}));
}

}  // namespace
}  // namespace voodoo::quant
