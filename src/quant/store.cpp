#include "quant/store.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"

namespace voodoo::quant {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'V', 'D', 'C', 'A', 'N', 'D', '0', '1'};
constexpr std::string_view kSuffix = ".candidate";
constexpr std::string_view kTempSuffix = ".tmp";
/// Weights that are decoded and encoded at a time.
constexpr int64_t kBlockWeights = 1 << 20;

/// Start of a file, padded to 256 bytes so that the payload after it is aligned. After the payload
/// come the 64 hex digits of the SHA-256 over all that precedes them.
struct FileHeader {
    char magic[8];
    char id[64];
    int32_t type;
    uint32_t is_barred;  // the payload is the reason as text
    int64_t n_per_row;
    int64_t n_rows;
    int64_t n_mat;
    uint64_t payload_bytes;
    char padding[144];
};
static_assert(sizeof(FileHeader) == 256 && sizeof(FileHeader) % 64 == 0);
constexpr size_t kChecksumBytes = 64;

FileHeader make_header(const CandidateKey& key, const std::string& id, bool is_barred,
                       uint64_t payload_bytes) {
    FileHeader header{};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    std::memcpy(header.id, id.data(), sizeof(header.id));
    header.type = key.type;
    header.is_barred = is_barred ? 1 : 0;
    header.n_per_row = key.shape.n_per_row;
    header.n_rows = key.shape.n_rows;
    header.n_mat = key.shape.n_mat;
    header.payload_bytes = payload_bytes;
    return header;
}

uint64_t encoded_bytes(const CandidateKey& key) {
    return size_bytes(key.type, key.shape.n_per_row, key.shape.total_rows());
}

void require_space(const fs::path& folder, uint64_t needed) {
    std::error_code code;
    const fs::space_info space = fs::space(folder, code);
    if (code || space.available >= needed) return;
    throw Error(ErrorKind::io,
                fmt::format("the disk is full: {} are needed, {} are free", format_size(needed),
                            format_size(space.available)),
                folder.string(), "free some space and run the same command again");
}

void write_barred(const fs::path& path, const CandidateKey& key, const std::string& id,
                  const std::string& reason) {
    const FileHeader header = make_header(key, id, true, reason.size());
    AtomicFile file(path);
    file.write(&header, sizeof(header));
    file.write(reason);
    file.write(Sha256().update(&header, sizeof(header)).update(reason).hex());
    file.commit();
}

}  // namespace

std::string CandidateKey::id() const {
    const TypeInfo& info = type_info(type);
    return sha256_hex(fmt::format(
        "voodoo candidate 1\ntensor {}\nimatrix {}\ntype {}\nshape {} {} {}\nencoder {}\n",
        tensor_hash, info.imatrix == ImatrixNeed::none ? "none" : imatrix_hash, info.name,
        shape.n_per_row, shape.n_rows, shape.n_mat, encoder));
}

std::string source_hash(const SourceTensor& source) {
    Sha256 hash;
    hash.update(fmt::format("{} {} {} {}\n", type_info(source.type).name, source.shape.n_per_row,
                            source.shape.n_rows, source.shape.n_mat));
    hash.update(source.data,
                size_bytes(source.type, source.shape.n_per_row, source.shape.total_rows()));
    return hash.hex();
}

void StoredCandidate::drop() const {
    if (file_ != nullptr) file_->drop(0, file_->bytes().size());
}

CandidateStore::CandidateStore(fs::path folder) : folder_(std::move(folder)) {
    std::error_code code;
    fs::create_directories(folder_, code);
    if (code) {
        throw Error(ErrorKind::io,
                    fmt::format("can't create the candidate store: {}", code.message()),
                    folder_.string());
    }
    lock_ = std::make_unique<FileLock>(folder_ / "lock");
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, code)) {
        std::error_code ignored;  // what can't be removed does no harm
        if (entry.path().native().ends_with(kTempSuffix)) fs::remove(entry.path(), ignored);
    }
    if (code) {
        throw Error(ErrorKind::io,
                    fmt::format("can't list the candidate store: {}", code.message()),
                    folder_.string());
    }
}

fs::path CandidateStore::file_of(const std::string& id) const {
    return folder_ / (id + std::string(kSuffix));
}

StoredCandidate CandidateStore::open_entry(const CandidateKey& key, const std::string& id) {
    const fs::path path = file_of(id);
    const auto damaged = [&](const char* why) {
        return Error(ErrorKind::bad_file, fmt::format("damaged candidate: {}", why), path.string());
    };
    auto file = std::make_shared<const MappedFile>(path);
    const std::span<const std::byte> bytes = file->bytes();
    if (bytes.size() < sizeof(FileHeader) + kChecksumBytes) throw damaged("it is too short");
    FileHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const uint64_t payload_bytes = bytes.size() - sizeof(header) - kChecksumBytes;
    const bool is_barred = header.is_barred != 0;
    const FileHeader expected =
        make_header(key, id, is_barred, is_barred ? payload_bytes : encoded_bytes(key));
    if (std::memcmp(&header, &expected, sizeof(header)) != 0) throw damaged("its header is wrong");
    if (header.payload_bytes != payload_bytes) throw damaged("its size is wrong");

    bool is_verified = false;
    {
        const std::lock_guard lock(mutex_);
        is_verified = verified_.contains(id);
    }
    if (!is_verified) {
        const size_t n = bytes.size() - kChecksumBytes;
        const std::string checksum = Sha256().update(bytes.data(), n).hex();
        if (std::memcmp(checksum.data(), bytes.data() + n, kChecksumBytes) != 0) {
            throw damaged("its checksum is wrong");
        }
        file->drop(0, bytes.size());
        const std::lock_guard lock(mutex_);
        verified_.insert(id);
    }

    StoredCandidate candidate;
    const std::span<const std::byte> payload = bytes.subspan(sizeof(header), payload_bytes);
    if (is_barred) {
        candidate.reason_.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
        return candidate;
    }
    candidate.file_ = std::move(file);
    candidate.bytes_ = payload;
    candidate.view_ = make_view(key.type, payload.data(), key.shape.n_per_row);
    return candidate;
}

std::optional<StoredCandidate> CandidateStore::find(const CandidateKey& key, Observer& observer) {
    const std::string id = key.id();
    std::error_code code;
    if (!fs::exists(file_of(id), code)) return std::nullopt;
    try {
        return open_entry(key, id);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_file) throw;
        observer.log(LogLevel::warn, fmt::format("{}; it is removed and made again", error.what()));
        remove(key);
        return std::nullopt;
    }
}

std::string CandidateStore::write_encoded(const CandidateKey& key, const SourceTensor& source,
                                          const float* importance, const Encoder& encoder,
                                          ThreadPool& pool,
                                          const Cancellation* cancellation) const {
    const std::string id = key.id();
    const MatrixShape& shape = key.shape;
    const FileHeader header = make_header(key, id, false, encoded_bytes(key));
    require_space(folder_, header.payload_bytes + sizeof(header) + kChecksumBytes);
    AtomicFile file(file_of(id));
    Sha256 hash;
    file.write(&header, sizeof(header));
    hash.update(&header, sizeof(header));

    const int64_t block_rows = std::clamp<int64_t>(kBlockWeights / shape.n_per_row, 1,
                                                   std::max<int64_t>(1, shape.total_rows()));
    const uint64_t source_row = row_bytes(source.type, shape.n_per_row);
    const uint64_t target_row = row_bytes(key.type, shape.n_per_row);
    std::vector<float> floats(static_cast<size_t>(block_rows * shape.n_per_row));
    std::vector<std::byte> encoded(static_cast<size_t>(block_rows) * target_row);
    for (int64_t row = 0; row < shape.total_rows(); row += block_rows) {
        if (cancellation != nullptr) cancellation->check();
        const int64_t n_rows = std::min(block_rows, shape.total_rows() - row);
        to_float(source.type, source.data + static_cast<uint64_t>(row) * source_row, floats.data(),
                 n_rows * shape.n_per_row, pool);
        const EncodeResult result =
            encode_rows(encoder, key.type, floats.data(), shape, row, n_rows, importance,
                        encoded.data(), pool, cancellation);
        if (!result.usable) return result.reason;
        const size_t size = static_cast<size_t>(n_rows) * target_row;
        file.write(encoded.data(), size);
        hash.update(encoded.data(), size);
    }
    file.write(hash.hex());
    file.commit();
    return {};
}

StoredCandidate CandidateStore::put(const CandidateKey& key, const SourceTensor& source,
                                    const float* importance, const Encoder& encoder,
                                    ThreadPool& pool, const Cancellation* cancellation) {
    VOODOO_CHECK(key.shape == source.shape, "the key's shape is not the tensor's");
    VOODOO_CHECK(key.encoder == encoder.identity(), "the key names another encoder");
    VOODOO_CHECK((importance == nullptr) == (key.imatrix_hash == "none"),
                 "the key and the importances do not agree");
    const std::string id = key.id();
    const std::lock_guard put_lock(put_mutex_);
    const std::string reason = write_encoded(key, source, importance, encoder, pool, cancellation);
    if (!reason.empty()) write_barred(file_of(id), key, id, reason);
    {
        // What was just written needs no check.
        const std::lock_guard lock(mutex_);
        verified_.insert(id);
    }
    return open_entry(key, id);
}

StoredCandidate CandidateStore::find_or_put(const CandidateKey& key, const SourceTensor& source,
                                            const float* importance, const Encoder& encoder,
                                            ThreadPool& pool, const Cancellation* cancellation,
                                            Observer& observer) {
    if (std::optional<StoredCandidate> found = find(key, observer)) return *std::move(found);
    return put(key, source, importance, encoder, pool, cancellation);
}

void CandidateStore::remove(const CandidateKey& key) {
    const std::string id = key.id();
    std::error_code code;
    fs::remove(file_of(id), code);
    if (code) {
        throw Error(ErrorKind::io, fmt::format("can't remove a candidate: {}", code.message()),
                    file_of(id).string());
    }
    const std::lock_guard lock(mutex_);
    verified_.erase(id);
}

}  // namespace voodoo::quant
