// Every rule of the reader's validation against a hand-made file that breaks only that rule.
#include "gguf/header.h"

#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

using Header = GgufTest;

/// A file with one F32 tensor of the given shape and room for `n_bytes` of data.
std::string one_tensor(const std::vector<int64_t>& ne, int32_t type, uint64_t offset,
                       size_t n_bytes = 4096) {
    return Bytes().header(1, 0).tensor("w", ne, type, offset).pad().zeros(n_bytes).str();
}

TEST_F(Header, AcceptsVersions2And3) {
    EXPECT_EQ(open_bytes(Bytes().header(0, 0, 2).str()).version(), 2u);
    EXPECT_EQ(open_bytes(Bytes().header(0, 0, 3).str()).version(), 3u);
    EXPECT_EQ(open_bytes(one_tensor({32, 2}, GGML_TYPE_F32, 0)).tensors().size(), 1u);
}

TEST_F(Header, RefusesWrongMagic) {
    expect_bad_file(Bytes().raw("GGML").zeros(20).str(), "not a GGUF file");
    expect_bad_file("", "file ends inside the magic number");
    expect_bad_file("GG", "file ends inside the magic number");
}

TEST_F(Header, RefusesOtherVersions) {
    for (const uint32_t version : {0u, 1u, 4u, 0x00010003u}) {
        expect_bad_file(Bytes().header(0, 0, version).str(), "version");
    }
    expect_bad_file(Bytes().header(0, 0, 0x03000000).str(), "big-endian");
}

TEST_F(Header, RefusesCountsThatTheFileCannotHold) {
    expect_bad_file(Bytes().header(1000, 0).zeros(1000).str(), "claims 1000 tensors");
    expect_bad_file(Bytes().header(0, 1000).zeros(1000).str(), "claims 1000 keys");
    expect_bad_file(Bytes().header(~uint64_t{0}, 0).str(), "tensors");
    expect_bad_file(Bytes().header(0, ~uint64_t{0}).str(), "keys");
    expect_bad_file(Bytes().header(0, uint64_t{1} << 63).str(), "keys");
}

TEST_F(Header, RefusesBadKeys) {
    const auto with_key = [](std::string_view key) {
        return Bytes().header(0, 1).key(key, ValueType::u8).number<uint8_t>(1).zeros(32).str();
    };
    expect_bad_file(with_key(""), "key 0 is empty");
    expect_bad_file(with_key(std::string(65536, 'k')), "65536 bytes long");
    expect_bad_file(with_key("a\nb"), "control characters");
    expect_bad_file(with_key(std::string_view("a\0b", 3)), "control characters");
    EXPECT_NO_THROW(open_bytes(with_key(std::string(65535, 'k'))));
    expect_bad_file(Bytes().header(0, 1).number(~uint64_t{0}).zeros(32).str(),
                    "file ends inside key 0");
}

TEST_F(Header, RefusesDuplicateKeys) {
    Bytes b;
    b.header(0, 3);
    for (const char* key : {"twin", "other", "twin"}) {
        b.key(key, ValueType::u32).number<uint32_t>(1);
    }
    expect_bad_file(b.str(), "duplicate key 'twin'");
}

TEST_F(Header, RefusesBadValues) {
    const auto with = [](uint32_t type) { return Bytes().header(0, 1).text("k").number(type); };
    expect_bad_file(with(13).zeros(64).str(), "unknown type 13");
    expect_bad_file(with(~0u).zeros(64).str(), "unknown type");
    expect_bad_file(with(8).number<uint64_t>(1000).zeros(64).str(),
                    "file ends inside the value of 'k'");
    expect_bad_file(with(8).number(~uint64_t{0}).zeros(64).str(),
                    "file ends inside the value of 'k'");
    expect_bad_file(with(10).zeros(4).str(), "file ends inside the value of 'k'");
}

TEST_F(Header, RefusesBadArrays) {
    const auto with = [](uint32_t element, uint64_t count) {
        return Bytes()
            .header(0, 1)
            .key("k", ValueType::array)
            .number(element)
            .number(count)
            .zeros(64)
            .str();
    };
    expect_bad_file(with(9, 1), "nested array");
    expect_bad_file(with(13, 1), "elements of unknown type 13");
    expect_bad_file(with(4, 17), "claims 17 elements of u32");
    expect_bad_file(with(10, ~uint64_t{0} / 8 + 2), "elements of u64");  // times 8 would wrap to 8
    expect_bad_file(with(8, 9), "claims 9 strings");
    expect_bad_file(with(8, uint64_t{1} << 61), "strings");
    EXPECT_NO_THROW(open_bytes(with(4, 16)));
    EXPECT_NO_THROW(open_bytes(with(8, 8)));  // eight empty strings
}

TEST_F(Header, RefusesBadAlignment) {
    const auto with = [](uint32_t alignment) {
        return Bytes().header(0, 1).key(kKeyAlignment, ValueType::u32).number(alignment).str();
    };
    for (const uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 21, ~0u}) {
        expect_bad_file(with(alignment), "must be a power of two");
    }
    expect_bad_file(
        Bytes().header(0, 1).key(kKeyAlignment, ValueType::u64).number<uint64_t>(32).str(),
        "is of type u64, must be u32");
    EXPECT_EQ(open_bytes(with(64)).alignment(), 64u);
}

TEST_F(Header, RefusesBadTensorNames) {
    const auto with = [](std::string_view name) {
        return Bytes().header(1, 0).tensor(name, {8}, GGML_TYPE_F32, 0).pad().zeros(64).str();
    };
    expect_bad_file(with(""), "is empty");
    expect_bad_file(with(std::string(64, 'n')), "64 bytes long");
    expect_bad_file(with(std::string_view("n\0n", 3)), "control characters");
    EXPECT_NO_THROW(open_bytes(with(std::string(63, 'n'))));
}

TEST_F(Header, RefusesDuplicateTensorNames) {
    expect_bad_file(Bytes()
                        .header(2, 0)
                        .tensor("w", {8}, GGML_TYPE_F32, 0)
                        .tensor("w", {8}, GGML_TYPE_F32, 32)
                        .pad()
                        .zeros(64)
                        .str(),
                    "duplicate tensor name 'w'");
}

TEST_F(Header, RefusesBadShapes) {
    const int64_t big = int64_t{1} << 32;
    expect_bad_file(one_tensor({}, GGML_TYPE_F32, 0), "has 0 dimensions");
    expect_bad_file(one_tensor({1, 1, 1, 1, 1}, GGML_TYPE_F32, 0), "has 5 dimensions");
    expect_bad_file(one_tensor({0}, GGML_TYPE_F32, 0), "must be positive");
    expect_bad_file(one_tensor({32, -1}, GGML_TYPE_F32, 0), "must be positive");
    expect_bad_file(one_tensor({big, big}, GGML_TYPE_F32, 0), "more elements than 63 bits");
    expect_bad_file(one_tensor({big, big, big, big}, GGML_TYPE_F32, 0),
                    "more elements than 63 bits");
    expect_bad_file(one_tensor({big, big / 4, 1}, GGML_TYPE_F64, 0), "more bytes than 64 bits");
}

TEST_F(Header, RefusesUnknownAndRemovedTypes) {
    for (const int32_t type : {-1, 4, 5, 31, 36, static_cast<int32_t>(GGML_TYPE_COUNT), 1 << 30}) {
        expect_bad_file(one_tensor({256}, type, 0), "does not know or no longer supports");
    }
}

TEST_F(Header, RefusesRowsThatDoNotFitBlocks) {
    expect_bad_file(one_tensor({48, 32}, GGML_TYPE_Q8_0, 0),
                    "has rows of 48, no multiple of the 32");
    expect_bad_file(one_tensor({128, 2}, GGML_TYPE_Q4_K, 0), "no multiple of the 256");
}

TEST_F(Header, RefusesTensorsOutsideTheFile) {
    EXPECT_NO_THROW(open_bytes(one_tensor({1024}, GGML_TYPE_F32, 0)));
    expect_bad_file(one_tensor({1025}, GGML_TYPE_F32, 0), "beyond the end of the file");
    expect_bad_file(one_tensor({1024}, GGML_TYPE_F32, 32), "beyond the end of the file");
    expect_bad_file(one_tensor({1024}, GGML_TYPE_F32, ~uint64_t{31}), "beyond the end of the file");
    expect_bad_file(Bytes().header(1, 0).tensor("w", {8}, GGML_TYPE_F32, 0).str(),
                    "before the tensor data");
}

TEST_F(Header, RefusesMisalignedTensors) {
    expect_bad_file(one_tensor({8}, GGML_TYPE_F32, 16), "no multiple of the alignment 32");
}

TEST_F(Header, RefusesOverlappingTensors) {
    const auto with = [](uint64_t second) {
        return Bytes()
            .header(2, 0)
            .tensor("a", {16}, GGML_TYPE_F32, 0)
            .tensor("b", {16}, GGML_TYPE_F32, second)
            .pad()
            .zeros(256)
            .str();
    };
    expect_bad_file(with(0), "overlap");
    expect_bad_file(with(32), "tensors 'a' and 'b' overlap");
    EXPECT_NO_THROW(open_bytes(with(64)));
}

TEST_F(Header, EscapesHostileTextInMessages) {
    expect_bad_file(Bytes().header(0, 1).key("a\x1b[31m", ValueType::u8).zeros(32).str(),
                    "a\\x1b[31m");
}

TEST_F(Header, RefusesWhatIsNoRegularFile) {
    expect_error(ErrorKind::bad_file, "not a regular file", [&] { File::open(dir()); });
    expect_error(ErrorKind::io, "nowhere.gguf", [&] { File::open(dir() / "nowhere.gguf"); });
}

TEST_F(Header, BoundsMemoryOnHugeSparseFiles) {
    // Files of 64 GiB, all zeros behind a header whose claims the file could hold.
    const auto expect_refused = [&](const Bytes& header, std::string_view part) {
        const std::filesystem::path path = save("model.gguf", header.str());
        std::filesystem::resize_file(path, uint64_t{1} << 36);
        expect_error(ErrorKind::bad_file, part, [&] { File::open(path); });
    };
    const auto strings = [](uint64_t n) {
        return Bytes().header(0, 1).key("k", ValueType::array).number(ValueType::string).number(n);
    };
    expect_refused(strings(uint64_t{1} << 33), "claims 8589934592 strings, but only");
    expect_refused(strings(kMaxStrings + 1), "more than 16777216 in all");
    expect_refused(Bytes().header(kMaxTensors + 1, 0), "claims 1048577 tensors");
    expect_refused(Bytes().header(0, kMaxKeys + 1), "claims 1048577 keys");
    expect_refused(Bytes().header(0, 1).key("k", ValueType::string).number(uint64_t{1} << 35),
                   "header limit ends inside the value of 'k'");
    expect_refused(Bytes().header(1, 0).tensor("w", {int64_t{1} << 40}, GGML_TYPE_F32, 0),
                   "beyond the end of the file");
}

}  // namespace
}  // namespace voodoo::gguf::test
