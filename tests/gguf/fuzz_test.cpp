// Damaged files must end in an Error or in a model whose every byte can be read; never in a crash.
#include "base/files.h"
#include "base/random.h"
#include "gguf/header.h"
#include "gguf/writer.h"
#include "test_files.h"

namespace voodoo::gguf::test {
namespace {

/// Parses; on success touches every byte that the header promises. True if the bytes were accepted.
bool survives(std::string_view bytes) {
    const std::span<const std::byte> span(reinterpret_cast<const std::byte*>(bytes.data()),
                                          bytes.size());
    Header header;
    try {
        header = parse_header(span, "fuzz.gguf", 0);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::bad_file) << error.what();
        EXPECT_EQ(error.where(), "fuzz.gguf");
        return false;
    }
    unsigned sum = 0;
    for (const TensorInfo& tensor : header.tensors) {
        EXPECT_GT(tensor.n_elements(), 0);
        EXPECT_LE(tensor.offset + tensor.size_bytes, bytes.size());
        for (const std::byte b : span.subspan(tensor.offset, tensor.size_bytes)) {
            sum += std::to_integer<unsigned>(b);
        }
    }
    EXPECT_NE(sum, 1u);  // keeps the reads
    // What the reader accepts, the writer can lay out.
    EXPECT_NO_THROW((void)make_layout(header.metadata, planned_tensors(header.tensors)));
    return true;
}

/// A copy in a heap block of exactly its size, so that the address sanitizer sees any read past the
/// end.
bool survives_exactly(std::string_view bytes) {
    const std::unique_ptr<char[]> block(new char[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), block.get());
    return survives({block.get(), bytes.size()});
}

TEST(Fuzz, TruncationIsAlwaysAnError) {
    const std::string bytes = rich_file();
    ASSERT_TRUE(survives_exactly(bytes));
    const size_t data_bytes = 576;
    for (size_t size = 0; size < bytes.size() - data_bytes; ++size) {
        EXPECT_FALSE(survives_exactly(std::string_view(bytes).substr(0, size))) << size;
    }
    for (size_t i = 0; i < 64; ++i) {
        EXPECT_FALSE(survives_exactly(std::string_view(bytes).substr(0, bytes.size() * i / 64)))
            << i;
    }
}

TEST(Fuzz, RandomByteChangesNeverCrash) {
    const std::string bytes = rich_file();
    const size_t header_bytes = bytes.size() - 576;
    Random random(1, "gguf-byte-flips");
    size_t n_accepted = 0;
    size_t n_refused = 0;
    for (int i = 0; i < 6000; ++i) {
        std::string damaged = bytes;
        const uint64_t n_changes = 1 + random.below(4);
        for (uint64_t k = 0; k < n_changes; ++k) {
            damaged[random.below(header_bytes)] = static_cast<char>(random.bits());
        }
        (survives_exactly(damaged) ? n_accepted : n_refused)++;
    }
    EXPECT_GT(n_accepted, 100u);  // both ways are really taken
    EXPECT_GT(n_refused, 100u);
}

TEST(Fuzz, ExtremeNumbersAtEveryByteNeverCrash) {
    const std::string bytes = rich_file();
    const uint64_t extremes[] = {0,
                                 1,
                                 0x7fffffff,
                                 0xffffffff,
                                 uint64_t{1} << 62,
                                 uint64_t{1} << 63,
                                 ~uint64_t{0},
                                 ~uint64_t{31}};
    for (size_t at = 0; at + 8 <= bytes.size() - 576; ++at) {
        for (const uint64_t extreme : extremes) {
            std::string damaged = bytes;
            std::memcpy(damaged.data() + at, &extreme, sizeof(extreme));
            survives_exactly(damaged);
            std::memcpy(damaged.data() + at, &extreme, sizeof(uint32_t));
            survives_exactly(damaged);
        }
    }
}

TEST(Fuzz, CutAndSplicedFilesNeverCrash) {
    const std::string bytes = rich_file();
    Random random(2, "gguf-splices");
    for (int i = 0; i < 2000; ++i) {
        const size_t from = random.below(bytes.size());
        const size_t to = random.below(bytes.size());
        survives_exactly(bytes.substr(0, to) + bytes.substr(from));
    }
}

}  // namespace
}  // namespace voodoo::gguf::test
