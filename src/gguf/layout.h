// Where every byte of a GGUF file will lie, and how large the file will be, before anything is
// written. The budget search and the writer share this code, so a predicted size is the written
// size.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/tensor.h"
#include "gguf/value.h"

namespace voodoo::gguf {

/// A tensor to be written: unique name shorter than GGML_MAX_NAME, known type, rows that fit the
/// type's blocks.
struct PlannedTensor {
    std::string name;
    ggml_type type = GGML_TYPE_F32;
    Shape ne{1, 1, 1, 1};
};

/// The same tensors as planned ones, types kept: the start of a plan.
std::vector<PlannedTensor> planned_tensors(std::span<const TensorInfo> tensors);

/// Alignment that a file with this metadata has: general.alignment or 32. Error(internal) on an
/// invalid value.
uint64_t alignment_of(const Metadata& metadata);

/// Bytes before the tensor data, alignment padding included. It depends on names and shapes, not on
/// types.
uint64_t header_size_bytes(const Metadata& metadata, std::span<const PlannedTensor> tensors);

/// Exact size of the file that Writer writes: header + metadata + tensor infos + data, all padding
/// included. A change of one tensor's type changes it by the difference of
/// padded(tensor_size_bytes(...), alignment).
uint64_t file_size_bytes(const Metadata& metadata, std::span<const PlannedTensor> tensors);

/// One file, ready to be written.
struct Layout {
    std::string header;  ///< all bytes before the tensor data, padding included
    uint64_t alignment = kDefaultAlignment;
    std::vector<PlannedTensor> tensors;
    std::vector<uint64_t> sizes_bytes;  ///< of the tensors, without padding
    uint64_t file_size_bytes = 0;
};

/// Lays out a version 3 file exactly as llama.cpp does: tensors in order, each padded to the
/// alignment, the last one too. Error(internal) if a name is duplicated, empty or too long, or a
/// shape does not fit its type.
Layout make_layout(const Metadata& metadata, std::vector<PlannedTensor> tensors);

/// Lays out the shards of a split model as llama-gguf-split does: a new shard starts where the
/// padded tensor data (headers are not counted) would exceed max_shard_bytes; the first shard holds
/// all metadata; every shard gets split.no, split.tensors.count and split.count. A tensor larger
/// than the limit has a shard of its own. Throws Error(usage) if max_shard_bytes is 0 or makes more
/// than 512 shards (all are open until they are complete).
std::vector<Layout> make_split_layout(const Metadata& metadata, std::vector<PlannedTensor> tensors,
                                      uint64_t max_shard_bytes);

}  // namespace voodoo::gguf
