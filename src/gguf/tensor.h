// What a GGUF file says of one tensor, and sizes computed without overflow from untrusted shapes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ggml.h"

namespace voodoo::gguf {

/// Shape in ggml's order (ne[0] is the row length); unused dimensions are 1.
using Shape = std::array<int64_t, 4>;

/// One tensor of an opened file. All fields are validated.
struct TensorInfo {
    std::string name;
    ggml_type type = GGML_TYPE_F32;
    int n_dims = 1;  ///< as the file says it, 1..4
    Shape ne{1, 1, 1, 1};
    uint64_t offset = 0;      ///< of the data, from the start of its shard's file
    uint64_t size_bytes = 0;  ///< of the data, without padding
    int shard = 0;            ///< index into File::paths()

    int64_t n_elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
    int64_t n_rows() const { return ne[1] * ne[2] * ne[3]; }
};

/// Whether this ggml knows the type's layout: false for removed types and numbers out of range.
bool is_known_type(int64_t type);

/// Product of the dimensions; nothing if one is not positive or the product exceeds int64.
std::optional<int64_t> find_n_elements(const Shape& ne);

/// Bytes of a tensor; nothing if the shape is invalid, the type unknown, the row no multiple of the
/// type's block, or the size not representable.
std::optional<uint64_t> find_tensor_size_bytes(ggml_type type, const Shape& ne);

/// The same for a shape and type known to fit: Error(internal) otherwise.
uint64_t tensor_size_bytes(ggml_type type, const Shape& ne);

/// Dimensions without trailing ones, at least 1: what ggml writes as n_dims.
int n_dims_of(const Shape& ne);

/// Value rounded up to a multiple of alignment (a power of two). No overflow for sizes of real
/// files.
constexpr uint64_t padded(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
}

inline constexpr uint64_t kDefaultAlignment = 32;

/// Far above every real file; keeps the padding of a file without tensors small.
inline constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

/// Whether general.alignment may have this value: a power of two, at most kMaxAlignment, and a
/// multiple of 8 as the format's specification demands (rows of doubles in a mapped file are
/// aligned then).
constexpr bool is_valid_alignment(uint64_t alignment) {
    return alignment >= 8 && alignment <= kMaxAlignment && (alignment & (alignment - 1)) == 0;
}

}  // namespace voodoo::gguf
