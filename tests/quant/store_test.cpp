#include "quant/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/error.h"
#include "base/hash.h"
#include "quant/imatrix.h"
#include "test_data.h"

namespace voodoo::quant {
namespace {

namespace fs = std::filesystem;

/// A tensor and its importances, with the keys of its candidates.
struct Tensor {
    explicit Tensor(MatrixShape the_shape, uint64_t seed = 1)
        : shape(the_shape),
          weights(random_weights(shape.n_elements(), seed)),
          importance(random_importance(shape.n_per_row * shape.n_mat, seed)),
          hash(source_hash(source())),
          importance_id(importance_hash(importance)) {}

    SourceTensor source() const { return {GGML_TYPE_F32, bytes_of(weights), shape}; }
    CandidateKey key(ggml_type type) const {
        return {hash, importance_id, type, shape, Encoder().identity()};
    }
    StoredCandidate put(CandidateStore& store, ggml_type type, ThreadPool& pool) const {
        return store.put(key(type), source(), importance.data(), Encoder(), pool);
    }
    std::vector<std::byte> expected(ggml_type type, ThreadPool& pool) const {
        return encoded(type, weights, shape, importance, pool);
    }

    MatrixShape shape;
    std::vector<float> weights;
    std::vector<float> importance;
    std::string hash;
    std::string importance_id;
};

bool equal(std::span<const std::byte> a, const std::vector<std::byte>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::vector<fs::path> files_in(const fs::path& folder, std::string_view suffix) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().native().ends_with(suffix)) paths.push_back(entry.path());
    }
    return paths;
}

class Warnings : public Observer {
public:
    void log(LogLevel, std::string_view message) override { lines.emplace_back(message); }
    std::vector<std::string> lines;
};

TEST(CandidateStore, KeepsTheEncodersBytesAcrossReopening) {
    const ScratchFolder folder;
    ThreadPool pool(2);
    const Tensor tensor({512, 300, 2});
    StoredCandidate kept;
    {
        CandidateStore store(folder.path() / "store");
        EXPECT_FALSE(store.find(tensor.key(GGML_TYPE_Q4_K)).has_value());
        kept = tensor.put(store, GGML_TYPE_Q4_K, pool);
        EXPECT_TRUE(kept.usable());
    }
    const std::vector<std::byte> expected = tensor.expected(GGML_TYPE_Q4_K, pool);
    EXPECT_TRUE(equal(kept.bytes(), expected));  // outlives the store
    EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.bytes().data()) % 64, 0u);
    EXPECT_EQ(kept.view().type, GGML_TYPE_Q4_K);
    EXPECT_EQ(kept.view().row_size_bytes, row_bytes(GGML_TYPE_Q4_K, 512));
    kept.drop();
    EXPECT_TRUE(equal(kept.bytes(), expected));

    CandidateStore store(folder.path() / "store");
    const auto found = store.find(tensor.key(GGML_TYPE_Q4_K));
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(equal(found->bytes(), expected));
    EXPECT_FALSE(store.find(tensor.key(GGML_TYPE_Q5_K)).has_value());
    store.remove(tensor.key(GGML_TYPE_Q4_K));
    store.remove(tensor.key(GGML_TYPE_Q4_K));
    EXPECT_FALSE(store.find(tensor.key(GGML_TYPE_Q4_K)).has_value());
}

TEST(CandidateStore, EncodesInBlocksOfRowsToTheSameBytes) {
    const ScratchFolder folder;
    ThreadPool pool(2);
    const Tensor tensor({2048, 700, 2});  // several blocks, one across the matrices' border
    CandidateStore store(folder.path());
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q6_K}) {
        EXPECT_TRUE(equal(tensor.put(store, type, pool).bytes(), tensor.expected(type, pool)));
    }
}

TEST(CandidateStore, DecodesHalfFloatSources) {
    const ScratchFolder folder;
    ThreadPool pool(2);
    const Tensor tensor({256, 64, 1});
    CandidateStore store(folder.path());
    for (const ggml_type source_type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
        const std::vector<std::byte> bytes =
            encoded(source_type, tensor.weights, tensor.shape, {}, pool);
        const SourceTensor source{source_type, bytes.data(), tensor.shape};
        CandidateKey key = tensor.key(GGML_TYPE_Q4_K);
        key.tensor_hash = source_hash(source);
        EXPECT_NE(key.tensor_hash, tensor.hash);
        const StoredCandidate candidate =
            store.put(key, source, tensor.importance.data(), Encoder(), pool);
        const std::vector<float> floats = decoded(source_type, bytes, tensor.shape.n_elements());
        EXPECT_TRUE(equal(candidate.bytes(),
                          encoded(GGML_TYPE_Q4_K, floats, tensor.shape, tensor.importance, pool)));
    }
}

TEST(CandidateKey, DependsOnAllThatDeterminesTheBytes) {
    const Tensor tensor({256, 4, 1});
    const CandidateKey key = tensor.key(GGML_TYPE_Q4_K);
    std::set<std::string> ids = {key.id()};
    CandidateKey other = key;
    other.tensor_hash = sha256_hex("x");
    ids.insert(other.id());
    other = key;
    other.imatrix_hash = "none";
    ids.insert(other.id());
    other = key;
    other.type = GGML_TYPE_Q5_K;
    ids.insert(other.id());
    other = key;
    other.encoder = "ggml-1";
    ids.insert(other.id());
    other = key;
    other.shape = {512, 2, 1};
    ids.insert(other.id());
    EXPECT_EQ(ids.size(), 6u);
    // Q8_0 ignores the importances.
    CandidateKey with = tensor.key(GGML_TYPE_Q8_0);
    CandidateKey without = with;
    without.imatrix_hash = "none";
    EXPECT_EQ(with.id(), without.id());
}

TEST(CandidateStore, RemembersThatATypeIsBarred) {
    const ScratchFolder folder;
    ThreadPool pool(2);
    Tensor tensor({256, 8, 1});
    std::fill(tensor.importance.begin(), tensor.importance.end(), 0.0f);
    tensor.importance_id = importance_hash(tensor.importance);
    {
        CandidateStore store(folder.path());
        const StoredCandidate candidate = tensor.put(store, GGML_TYPE_Q4_K, pool);
        EXPECT_FALSE(candidate.usable());
        EXPECT_TRUE(candidate.bytes().empty());
    }
    CandidateStore store(folder.path());
    const auto found = store.find(tensor.key(GGML_TYPE_Q4_K));
    ASSERT_TRUE(found.has_value());
    EXPECT_FALSE(found->usable());
    EXPECT_NE(found->reason().find("all zero"), std::string::npos) << found->reason();
    EXPECT_TRUE(files_in(folder.path(), ".tmp").empty());
}

void flip_bit(const fs::path& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
}

TEST(CandidateStore, FindsAFlippedBitAnywhereAndMakesTheEntryAgain) {
    const ScratchFolder folder;
    ThreadPool pool(2);
    const Tensor tensor({256, 16, 1});
    const std::vector<std::byte> expected = tensor.expected(GGML_TYPE_Q4_K, pool);
    {
        CandidateStore store(folder.path());
        tensor.put(store, GGML_TYPE_Q4_K, pool);
    }
    const fs::path file = files_in(folder.path(), ".candidate").at(0);
    const uint64_t size = fs::file_size(file);
    // Magic, id, type, padding, payload's first and last byte, checksum.
    for (const uint64_t offset : {uint64_t{0}, uint64_t{20}, uint64_t{72}, uint64_t{200},
                                  uint64_t{256}, size - 65, size - 1}) {
        flip_bit(file, offset);
        CandidateStore store(folder.path());
        Warnings warnings;
        EXPECT_FALSE(store.find(tensor.key(GGML_TYPE_Q4_K), warnings).has_value()) << offset;
        ASSERT_EQ(warnings.lines.size(), 1u);
        EXPECT_NE(warnings.lines[0].find("damaged"), std::string::npos);
        EXPECT_FALSE(fs::exists(file));
        const StoredCandidate again = store.find_or_put(tensor.key(GGML_TYPE_Q4_K), tensor.source(),
                                                        tensor.importance.data(), Encoder(), pool);
        EXPECT_TRUE(equal(again.bytes(), expected));
    }
    fs::resize_file(file, size - 100);
    CandidateStore store(folder.path());
    EXPECT_FALSE(store.find(tensor.key(GGML_TYPE_Q4_K)).has_value());
}

const std::vector<ggml_type> kManyTypes = {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K,
                                           GGML_TYPE_Q6_K, GGML_TYPE_Q3_K, GGML_TYPE_Q5_K,
                                           GGML_TYPE_Q5_1, GGML_TYPE_BF16};

TEST(CandidateStore, IsValidAfterAKillAtAnyMoment) {
    const ScratchFolder folder;
    const Tensor tensor({512, 400, 1});
    std::vector<std::vector<std::byte>> expected;
    {
        ThreadPool pool(2);
        for (const ggml_type type : kManyTypes) expected.push_back(tensor.expected(type, pool));
    }
    Random random(3, "kill");
    size_t n_interrupted = 0;
    for (int round = 0; round < 8; ++round) {
        const fs::path path = folder.path() / std::to_string(round);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            ThreadPool pool(2);
            CandidateStore store(path);
            for (const ggml_type type : kManyTypes) tensor.put(store, type, pool);
            ::_exit(0);
        }
        ::usleep(static_cast<useconds_t>(2000 + random.below(60000)));
        ::kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        n_interrupted += WIFSIGNALED(status) ? 1 : 0;

        ThreadPool pool(2);
        CandidateStore store(path);
        EXPECT_TRUE(files_in(path, ".tmp").empty());
        Warnings warnings;
        for (size_t i = 0; i < kManyTypes.size(); ++i) {
            const auto found = store.find(tensor.key(kManyTypes[i]), warnings);
            if (found.has_value()) {
                EXPECT_TRUE(equal(found->bytes(), expected[i]));
            }
            EXPECT_TRUE(equal(store
                                  .find_or_put(tensor.key(kManyTypes[i]), tensor.source(),
                                               tensor.importance.data(), Encoder(), pool)
                                  .bytes(),
                              expected[i]));
        }
        EXPECT_TRUE(warnings.lines.empty()) << warnings.lines[0];
    }
    EXPECT_GT(n_interrupted, 0u);
}

TEST(CandidateStore, RemovesLeftoversOfKilledWriters) {
    const ScratchFolder folder;
    const fs::path leftover = folder.path() / "abc.candidate.12345.tmp";
    std::ofstream(leftover) << "half";
    CandidateStore store(folder.path());
    EXPECT_FALSE(fs::exists(leftover));
}

TEST(CandidateStore, IsForOneProcessAtATime) {
    const ScratchFolder folder;
    const CandidateStore store(folder.path());
    try {
        const CandidateStore second(folder.path());
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io);
    }
}

// A file size limit stands for a full disk: the write fails in the middle of the payload.
TEST(CandidateStore, ReportsAFailingWriteAndLeavesNothingBehind) {
    const ScratchFolder folder;
    const Tensor tensor({512, 400, 1});
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ThreadPool pool(1);
        CandidateStore store(folder.path());
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{20000, 20000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        try {
            tensor.put(store, GGML_TYPE_Q8_0, pool);
            ::_exit(1);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::io) ::_exit(2);
        }
        ::_exit(store.find(tensor.key(GGML_TYPE_Q8_0)).has_value() ? 3 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_TRUE(files_in(folder.path(), ".tmp").empty());
    EXPECT_TRUE(files_in(folder.path(), ".candidate").empty());
}

TEST(CandidateStore, CantBeMadeWhereAFileIs) {
    const ScratchFolder folder;
    std::ofstream(folder.path() / "file") << "x";
    try {
        const CandidateStore store(folder.path() / "file" / "store");
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io);
    }
}

TEST(CandidateStore, LeavesNothingWhenCancelled) {
    const ScratchFolder folder;
    ThreadPool pool(2);
    const Tensor tensor({512, 40, 1});
    CandidateStore store(folder.path());
    Cancellation cancellation;
    cancellation.request();
    EXPECT_THROW(store.put(tensor.key(GGML_TYPE_Q4_K), tensor.source(), tensor.importance.data(),
                           Encoder(), pool, &cancellation),
                 Error);
    EXPECT_TRUE(files_in(folder.path(), ".tmp").empty());
    EXPECT_FALSE(store.find(tensor.key(GGML_TYPE_Q4_K)).has_value());
}

TEST(CandidateStore, RefusesAKeyThatDoesNotFit) {
    const ScratchFolder folder;
    ThreadPool pool(1);
    const Tensor tensor({256, 4, 1});
    CandidateStore store(folder.path());
    CandidateKey key = tensor.key(GGML_TYPE_Q4_K);
    EXPECT_THROW(store.put(key, tensor.source(), nullptr, Encoder(), pool), Error);
    key.shape.n_rows = 5;
    EXPECT_THROW(store.put(key, tensor.source(), tensor.importance.data(), Encoder(), pool), Error);
}

}  // namespace
}  // namespace voodoo::quant
