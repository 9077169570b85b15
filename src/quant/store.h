// The candidate store: encoded tensors on disk, addressed by what determines their bytes. Encoding
// is expensive (up to microseconds per weight), so each candidate is encoded once, and export
// copies these very bytes.
//
// A file is complete under its final name or not there: it is written under a temporary name,
// fsynced, renamed. Its payload's checksum is verified when it is first opened in a process; a
// damaged file is removed and counts as absent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/files.h"
#include "base/progress.h"
#include "base/threads.h"
#include "quant/candidates.h"
#include "quant/codec.h"

namespace voodoo::quant {

/// Everything that determines a candidate's bytes.
struct CandidateKey {
    std::string tensor_hash;   ///< SHA-256 of the source tensor's type and bytes, see source_hash
    std::string imatrix_hash;  ///< importance_hash of the values used, or "none"
    ggml_type type = GGML_TYPE_F32;
    MatrixShape shape;
    std::string encoder;  ///< Encoder::identity()

    /// 64 hex digits. The imatrix does not count for types that ignore it.
    std::string id() const;
};

/// A source tensor, borrowed: any type of the table, rows contiguous.
struct SourceTensor {
    ggml_type type = GGML_TYPE_F32;
    const std::byte* data = nullptr;
    MatrixShape shape;
};

/// SHA-256 over type, shape and bytes.
std::string source_hash(const SourceTensor& source);

/// An entry of the store, mapped read-only. Copies share the mapping; it stays valid when the store
/// is gone.
class StoredCandidate {
public:
    /// False: the encoder can't represent this tensor in this type (reason says why); there are no
    /// bytes.
    bool usable() const { return reason_.empty(); }
    const std::string& reason() const { return reason_; }
    std::span<const std::byte> bytes() const { return bytes_; }  ///< 64-byte aligned
    CandidateView view() const { return view_; }
    /// Tells the kernel that the pages are not needed soon.
    void drop() const;

private:
    friend class CandidateStore;
    std::shared_ptr<const MappedFile> file_;
    std::span<const std::byte> bytes_;
    CandidateView view_;
    std::string reason_;
};

/// A folder of candidates, locked for one process. Methods may be called from any thread.
class CandidateStore {
public:
    /// Creates the folder if need be, takes its lock, removes leftovers of killed writers. Throws
    /// Error(io).
    explicit CandidateStore(std::filesystem::path folder);

    /// The candidate if it is there and whole. Damaged files are removed and logged. Throws
    /// Error(io).
    std::optional<StoredCandidate> find(const CandidateKey& key,
                                        Observer& observer = null_observer());

    /// Encodes in row blocks straight into the store (a few MiB of buffers, whatever the tensor's
    /// size) and opens the result. An existing entry is replaced. importance: n_per_row * n_mat
    /// values or null; must be what key.imatrix_hash names. Throws Error(io) if the disk is full or
    /// not writable, Error(interrupted) if cancelled; the store stays valid.
    StoredCandidate put(const CandidateKey& key, const SourceTensor& source,
                        const float* importance, const Encoder& encoder, ThreadPool& pool,
                        const Cancellation* cancellation = nullptr);

    /// find, else put.
    StoredCandidate find_or_put(const CandidateKey& key, const SourceTensor& source,
                                const float* importance, const Encoder& encoder, ThreadPool& pool,
                                const Cancellation* cancellation = nullptr,
                                Observer& observer = null_observer());

    /// Removes an entry if it is there.
    void remove(const CandidateKey& key);

    const std::filesystem::path& folder() const { return folder_; }

private:
    std::filesystem::path file_of(const std::string& id) const;
    /// Encodes into the file; returns why the tensor can't be encoded, or nothing when the file is
    /// complete.
    std::string write_encoded(const CandidateKey& key, const SourceTensor& source,
                              const float* importance, const Encoder& encoder, ThreadPool& pool,
                              const Cancellation* cancellation) const;
    /// Maps an entry; checks its checksum the first time. Throws Error(bad_file) if it is damaged.
    StoredCandidate open_entry(const CandidateKey& key, const std::string& id);

    std::filesystem::path folder_;
    std::unique_ptr<FileLock> lock_;
    std::mutex put_mutex_;            // one writer at a time: the temporary names are per process
    std::mutex mutex_;                // guards verified_
    std::set<std::string> verified_;  // ids whose checksum was checked by this object
};

}  // namespace voodoo::quant
