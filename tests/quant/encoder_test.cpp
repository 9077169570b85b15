// The encoding library that is opened at run time: its own code must produce the bytes.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "quant/codec.h"
#include "test_data.h"

namespace voodoo::quant {
namespace {

const MatrixShape kShape{512, 6, 1};

std::vector<std::byte> encode_with(const Encoder& encoder, ggml_type type) {
    ThreadPool pool(2);
    const std::vector<float> weights = random_weights(kShape.n_elements(), 3);
    const std::vector<float> importance = random_importance(kShape.n_per_row, 4);
    std::vector<std::byte> bytes(size_bytes(type, kShape.n_per_row, kShape.total_rows()));
    EXPECT_TRUE(encode(encoder, type, weights.data(), kShape, importance.data(), bytes.data(), pool)
                    .usable);
    return bytes;
}

TEST(Encoder, DescribesTheLinkedLibrary) {
    const Encoder encoder;
    EXPECT_TRUE(encoder.is_linked());
    EXPECT_EQ(encoder.version(), ggml_version());
    EXPECT_EQ(encoder.commit(), ggml_commit());
    ASSERT_TRUE(std::filesystem::exists(encoder.path())) << encoder.path();
    EXPECT_NE(encoder.path().filename().string().find("ggml-base"), std::string::npos);
    EXPECT_EQ(encoder.sha256(), sha256_hex(read_file(encoder.path())));
    EXPECT_NE(encoder.description().find(encoder.sha256()), std::string::npos);
}

TEST(Encoder, OpenedRealLibraryGivesIdenticalBytesForEveryType) {
    const Encoder linked;
    const Encoder opened = Encoder::open_library(linked.path());
    EXPECT_FALSE(opened.is_linked());
    EXPECT_EQ(opened.version(), linked.version());
    EXPECT_EQ(opened.identity(), linked.identity());
    for (const TypeInfo& info : all_types()) {
        if (has_slow_tables(info.type)) continue;  // each library would build its own
        EXPECT_EQ(encode_with(opened, info.type), encode_with(linked, info.type)) << info.name;
    }
}

TEST(Encoder, OpenedOtherLibraryProducesTheBytesWithItsOwnInnerFunctions) {
    const Encoder linked;
    const Encoder other = Encoder::open_library(VOODOO_TEST_OTHER_ENCODER);
    EXPECT_EQ(other.version(), "0.0.0-test");
    EXPECT_NE(other.identity(), linked.identity());
    const std::vector<std::byte> bytes = encode_with(other, GGML_TYPE_Q8_0);
    EXPECT_NE(bytes, encode_with(linked, GGML_TYPE_Q8_0));
    for (size_t i = 0; i < bytes.size(); ++i) {
        ASSERT_EQ(bytes[i], std::byte{static_cast<unsigned char>(i % 34 == 1 ? 0x3c : 0)}) << i;
    }
    EXPECT_EQ(encode_with(other, GGML_TYPE_Q4_K), encode_with(linked, GGML_TYPE_Q4_K));
    // The linked library is as it was.
    EXPECT_EQ(encode_with(Encoder(), GGML_TYPE_Q8_0), encode_with(linked, GGML_TYPE_Q8_0));
}

// Why open_library does more than dlopen: this is what would happen. If it ever fails, the test
// above has lost its teeth.
TEST(Encoder, PlainDlopenWouldBindTheInnerCallToTheLinkedLibrary) {
    void* handle = ::dlopen(VOODOO_TEST_OTHER_ENCODER, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    const auto quantize =
        reinterpret_cast<decltype(&ggml_quantize_chunk)>(::dlsym(handle, "ggml_quantize_chunk"));
    ASSERT_NE(quantize, nullptr);
    EXPECT_NE(quantize, &ggml_quantize_chunk);
    const std::vector<float> weights = random_weights(kShape.n_elements(), 3);
    std::vector<std::byte> bytes(size_bytes(GGML_TYPE_Q8_0, kShape.n_per_row, kShape.n_rows));
    quantize(GGML_TYPE_Q8_0, weights.data(), bytes.data(), 0, kShape.n_rows, kShape.n_per_row,
             nullptr);
    EXPECT_EQ(bytes, encode_with(Encoder(), GGML_TYPE_Q8_0));
    ::dlclose(handle);
}

TEST(Encoder, WorksFromThreadsThatExistedBeforeTheLibraryWasOpened) {
    ThreadPool pool(4);
    pool.parallel_for(8, 1, [](int64_t, int64_t, int) {});
    const Encoder opened = Encoder::open_library(Encoder().path());
    const MatrixShape shape{512, 64, 1};
    const std::vector<float> weights = random_weights(shape.n_elements(), 8);
    const std::vector<float> importance = random_importance(shape.n_per_row, 9);
    for (const ggml_type type : {GGML_TYPE_IQ3_XXS, GGML_TYPE_Q4_0}) {
        std::vector<std::byte> bytes(size_bytes(type, shape.n_per_row, shape.n_rows));
        ASSERT_TRUE(
            encode(opened, type, weights.data(), shape, importance.data(), bytes.data(), pool)
                .usable);
        EXPECT_EQ(bytes, encoded(type, weights, shape, importance, pool));
    }
}

TEST(Encoder, RefusesWhatIsNoFittingLibrary) {
    const auto kind_of = [](const std::filesystem::path& path) {
        try {
            Encoder::open_library(path);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(path.filename().string()), std::string::npos)
                << error.what();
            return error.kind();
        }
        ADD_FAILURE() << path << " was opened";
        return ErrorKind::internal;
    };
    EXPECT_EQ(kind_of("/no/such/library.so"), ErrorKind::io);
    EXPECT_EQ(kind_of(__FILE__), ErrorKind::io);
    EXPECT_EQ(kind_of(VOODOO_TEST_NO_ENCODER), ErrorKind::bad_file);
    EXPECT_EQ(kind_of(VOODOO_TEST_OTHER_TYPES_LIB), ErrorKind::bad_file);
}

}  // namespace
}  // namespace voodoo::quant
