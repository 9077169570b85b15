#include "gguf/layout.h"

#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

TEST(Layout, PredictsTheSizeOfAHandMadeFile) {
    // 24 fixed + (8 + 1 + 4 + 4) key + (8 + 1 + 4 + 16 + 4 + 8) tensor = 82, padded 96; 2 * 34 =
    // 68, padded 96.
    const Metadata metadata = {{"k", Value::scalar<uint32_t>(1)}};
    const std::vector<PlannedTensor> tensors = {{"w", GGML_TYPE_Q8_0, {32, 2, 1, 1}}};
    EXPECT_EQ(header_size_bytes(metadata, tensors), 96u);
    EXPECT_EQ(file_size_bytes(metadata, tensors), 192u);
    EXPECT_EQ(make_layout(metadata, tensors).file_size_bytes, 192u);
}

TEST(Layout, FollowsTheAlignmentKey) {
    const Metadata metadata = {{std::string(kKeyAlignment), Value::scalar<uint32_t>(256)}};
    const std::vector<PlannedTensor> tensors = {{"a", GGML_TYPE_F32, {1, 1, 1, 1}},
                                                {"b", GGML_TYPE_F32, {65, 1, 1, 1}}};
    EXPECT_EQ(file_size_bytes(metadata, tensors), 256u + 256u + 512u);
    const Layout layout = make_layout(metadata, tensors);
    EXPECT_EQ(layout.header.size(), 256u);
}

TEST(Layout, PadsAnEmptyFileToo) {
    EXPECT_EQ(file_size_bytes({}, {}), 32u);
    EXPECT_EQ(make_layout({}, {}).header.size(), 32u);
}

TEST(Layout, StripsTrailingOnesFromShapes) {
    EXPECT_EQ(n_dims_of({7, 1, 1, 1}), 1);
    EXPECT_EQ(n_dims_of({1, 1, 1, 1}), 1);
    EXPECT_EQ(n_dims_of({1, 1, 5, 1}), 3);
    EXPECT_EQ(n_dims_of({1, 2, 3, 4}), 4);
}

TEST(Layout, RefusesImpossiblePlans) {
    const auto refuse = [](const Metadata& metadata, std::vector<PlannedTensor> tensors,
                           std::string_view part) {
        expect_error(ErrorKind::internal, part,
                     [&] { (void)make_layout(metadata, std::move(tensors)); });
    };
    const KeyValue kv{"k", Value::scalar<uint8_t>(1)};
    const PlannedTensor w{"w", GGML_TYPE_F32, {8, 1, 1, 1}};
    refuse({kv, kv}, {}, "key 'k' is planned twice");
    refuse({}, {w, w}, "tensor 'w' is planned twice");
    refuse({}, {{"", GGML_TYPE_F32, {8, 1, 1, 1}}}, "empty or too long");
    refuse({}, {{std::string(64, 'n'), GGML_TYPE_F32, {8, 1, 1, 1}}}, "empty or too long");
    refuse({}, {{"w", GGML_TYPE_Q8_0, {40, 1, 1, 1}}}, "no size");
    refuse({}, {{"w", GGML_TYPE_F32, {0, 1, 1, 1}}}, "no size");
    refuse({{std::string(kKeyAlignment), Value::scalar<uint32_t>(24)}}, {}, "power of two");
}

TEST(Layout, CutsShardsByPaddedTensorBytes) {
    std::vector<PlannedTensor> tensors;
    for (const char* name : {"a", "b", "c", "d"}) {
        tensors.push_back({name, GGML_TYPE_F32, {9, 1, 1, 1}});  // 36 bytes, padded 64
    }
    tensors.push_back({"large", GGML_TYPE_F32, {1000, 1, 1, 1}});
    const std::vector<Layout> shards = make_split_layout({}, tensors, 128);
    ASSERT_EQ(shards.size(), 3u);
    EXPECT_EQ(shards[0].tensors.size(), 2u);
    EXPECT_EQ(shards[1].tensors.size(), 2u);
    EXPECT_EQ(shards[2].tensors.size(), 1u);  // larger than the limit: alone
    EXPECT_EQ(make_split_layout({}, tensors, 127).size(), 5u);
    EXPECT_EQ(make_split_layout({}, tensors, 1 << 20).size(), 1u);
}

TEST(Layout, RefusesUselessShardSizes) {
    std::vector<PlannedTensor> tensors;
    for (int i = 0; i < 600; ++i) {
        tensors.push_back({fmt::format("t{}", i), GGML_TYPE_F32, {8, 1, 1, 1}});
    }
    expect_error(ErrorKind::usage, "must not be 0",
                 [&] { (void)make_split_layout({}, tensors, 0); });
    expect_error(ErrorKind::usage, "600 files", [&] { (void)make_split_layout({}, tensors, 1); });
}

}  // namespace
}  // namespace voodoo::gguf::test
