// Encoding and decoding of whole tensors through ggml's own quantizers. No quantized byte is
// computed here. Given the same floats, type and imatrix, the bytes equal llama-quantize's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/progress.h"
#include "base/threads.h"
#include "quant/types.h"

namespace voodoo::quant {

/// The library that produces the bytes: the linked libggml-base, or another one opened at run time.
/// Cheap to copy (shares the opened library). All methods may be called from any thread.
class Encoder {
public:
    /// The linked libggml-base.
    Encoder();

    /// Opens another libggml-base in a linker namespace of its own, so that its inner calls stay
    /// inside it. Throws Error(io) if it can't be opened, Error(bad_file) if it is no libggml-base
    /// of this version's kind: a symbol is missing, or the name, block size or block bytes of a
    /// type of our table differ.
    static Encoder open_library(const std::filesystem::path& path);

    bool is_linked() const;
    /// File the code was loaded from; for the linked library the path the dynamic linker found.
    const std::filesystem::path& path() const;
    const std::string& version() const;  ///< ggml_version()
    const std::string& commit() const;   ///< ggml_commit()
    const std::string& sha256() const;   ///< of the library's file
    /// One line for doctor and the plan: "/path/libggml-base.so: ggml 0.25.1 (commit), sha256 ...".
    std::string description() const;
    /// What identifies the produced bytes in the candidate store: "ggml-<version>-<commit>-<sha256
    /// of the file>".
    std::string identity() const;

    /// Encodes rows of one matrix; imatrix has n_per_row values or is null. The caller has checked
    /// that the type is legal and the values are finite (see encode), else ggml may abort. Returns
    /// the bytes written.
    size_t encode_rows(ggml_type type, const float* src, int64_t n_rows, int64_t n_per_row,
                       const float* imatrix, std::byte* dst) const;

    /// ggml_validate_row_data of this library.
    bool validate_rows(ggml_type type, const std::byte* data, size_t n_bytes) const;

private:
    struct Library;
    std::shared_ptr<const Library> library_;
};

/// Whether the encoded tensor can be used. Where not, the bytes in dst are meaningless.
struct EncodeResult {
    bool usable = true;
    std::string reason;  ///< why not, with the row
};

/// Encodes a whole tensor in parallel. src: shape.n_elements() floats. imatrix: n_per_row * n_mat
/// values (matrix m uses its own slice) or null. dst: size_bytes(type, n_per_row, total_rows)
/// bytes. Unusable (never an abort of ggml) where: a source value is not finite; a block's
/// importances are all zero but its source is not (types that use the imatrix); the bytes fail
/// ggml_validate_row_data or decode to non-finite values. Also unusable: values so large that the
/// search of the IQ types overflows (ggml would abort). Throws Error(interrupted) if cancelled,
/// Error(bad_file) if the imatrix has a non-finite or negative value; VOODOO_CHECK on an illegal
/// type (without imatrix, embeddings count as exempt).
EncodeResult encode(const Encoder& encoder, ggml_type type, const float* src,
                    const MatrixShape& shape, const float* imatrix, std::byte* dst,
                    ThreadPool& pool, const Cancellation* cancellation = nullptr);

/// The same for rows [first_row, first_row + n_rows) of the tensor (rows counted through all
/// matrices): src and dst point at the first of these rows, imatrix at the whole tensor's. Rows are
/// independent, so any split gives the same bytes.
EncodeResult encode_rows(const Encoder& encoder, ggml_type type, const float* src,
                         const MatrixShape& shape, int64_t first_row, int64_t n_rows,
                         const float* imatrix, std::byte* dst, ThreadPool& pool,
                         const Cancellation* cancellation = nullptr);

/// Decodes n_elements values (a multiple of the block size) of any type of the table. Thread-safe.
void to_float(ggml_type type, const std::byte* src, float* dst, int64_t n_elements);

/// The same in parallel.
void to_float(ggml_type type, const std::byte* src, float* dst, int64_t n_elements,
              ThreadPool& pool);

}  // namespace voodoo::quant
