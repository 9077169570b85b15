#include "gguf/layout.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace voodoo::gguf {

namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kFixedHeaderBytes = 4 + 4 + 8 + 8;  // magic, version, tensors, keys

template <typename T>
void append(std::string& out, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out.append(raw, sizeof(T));
}

void append_text(std::string& out, std::string_view text) {
    append(out, static_cast<uint64_t>(text.size()));
    out.append(text);
}

void append_key_value(std::string& out, const KeyValue& kv) {
    append_text(out, kv.key);
    append(out, static_cast<uint32_t>(kv.value.type()));
    if (kv.value.is_array()) {
        append(out, static_cast<uint32_t>(kv.value.element_type()));
        append(out, static_cast<uint64_t>(kv.value.count()));
    }
    out.append(kv.value.packed());
    for (const std::string& text : kv.value.strings()) {
        append_text(out, text);
    }
}

void append_tensor(std::string& out, const PlannedTensor& tensor, uint64_t offset) {
    append_text(out, tensor.name);
    const int n_dims = n_dims_of(tensor.ne);
    append(out, static_cast<uint32_t>(n_dims));
    for (int i = 0; i < n_dims; ++i) {
        append(out, tensor.ne[static_cast<size_t>(i)]);
    }
    append(out, static_cast<int32_t>(tensor.type));
    append(out, offset);
}

/// A violation is a bug of the caller: the reader would refuse the file.
void check_plan(const Metadata& metadata, std::span<const PlannedTensor> tensors) {
    const auto check_unique = [](std::vector<std::string_view> names, std::string_view what) {
        std::sort(names.begin(), names.end());
        const auto twin = std::adjacent_find(names.begin(), names.end());
        VOODOO_CHECK(twin == names.end(), "{} '{}' is planned twice", what, *twin);
    };
    std::vector<std::string_view> names;
    for (const KeyValue& kv : metadata) {
        VOODOO_CHECK(!kv.key.empty(), "empty metadata key");
        names.emplace_back(kv.key);
    }
    check_unique(std::move(names), "key");
    names.clear();
    for (const PlannedTensor& tensor : tensors) {
        VOODOO_CHECK(!tensor.name.empty() && tensor.name.size() < GGML_MAX_NAME,
                     "tensor name '{}' is empty or too long", tensor.name);
        names.emplace_back(tensor.name);
    }
    check_unique(std::move(names), "tensor");
}

}  // namespace

std::vector<PlannedTensor> planned_tensors(std::span<const TensorInfo> tensors) {
    std::vector<PlannedTensor> result;
    result.reserve(tensors.size());
    for (const TensorInfo& tensor : tensors) {
        result.push_back({tensor.name, tensor.type, tensor.ne});
    }
    return result;
}

uint64_t alignment_of(const Metadata& metadata) {
    const Value* value = find_value(metadata, kKeyAlignment);
    if (value == nullptr) {
        return kDefaultAlignment;
    }
    VOODOO_CHECK(value->type() == ValueType::u32 && is_valid_alignment(value->at<uint32_t>()),
                 "'{}' must be a u32, a power of two from 8 to {}", kKeyAlignment, kMaxAlignment);
    return value->at<uint32_t>();
}

uint64_t header_size_bytes(const Metadata& metadata, std::span<const PlannedTensor> tensors) {
    uint64_t size_bytes = kFixedHeaderBytes;
    for (const KeyValue& kv : metadata) {
        size_bytes +=
            sizeof(uint64_t) + kv.key.size() + sizeof(uint32_t) + kv.value.stored_size_bytes();
    }
    for (const PlannedTensor& tensor : tensors) {
        // name, n_dims, dimensions, type, offset
        size_bytes += sizeof(uint64_t) + tensor.name.size() + sizeof(uint32_t) +
                      static_cast<uint64_t>(n_dims_of(tensor.ne)) * sizeof(int64_t) +
                      sizeof(int32_t) + sizeof(uint64_t);
    }
    return padded(size_bytes, alignment_of(metadata));
}

uint64_t file_size_bytes(const Metadata& metadata, std::span<const PlannedTensor> tensors) {
    const uint64_t alignment = alignment_of(metadata);
    uint64_t size_bytes = header_size_bytes(metadata, tensors);
    for (const PlannedTensor& tensor : tensors) {
        size_bytes += padded(tensor_size_bytes(tensor.type, tensor.ne), alignment);
    }
    return size_bytes;
}

Layout make_layout(const Metadata& metadata, std::vector<PlannedTensor> tensors) {
    check_plan(metadata, tensors);
    Layout layout;
    layout.alignment = alignment_of(metadata);
    std::string& header = layout.header;
    header.reserve(static_cast<size_t>(header_size_bytes(metadata, tensors)));
    header.append("GGUF");
    append(header, kVersion);
    append(header, static_cast<uint64_t>(tensors.size()));
    append(header, static_cast<uint64_t>(metadata.size()));
    for (const KeyValue& kv : metadata) {
        append_key_value(header, kv);
    }
    uint64_t offset = 0;
    for (const PlannedTensor& tensor : tensors) {
        append_tensor(header, tensor, offset);
        layout.sizes_bytes.push_back(tensor_size_bytes(tensor.type, tensor.ne));
        offset += padded(layout.sizes_bytes.back(), layout.alignment);
    }
    header.resize(static_cast<size_t>(padded(header.size(), layout.alignment)), '\0');
    layout.file_size_bytes = header.size() + offset;
    VOODOO_CHECK(layout.file_size_bytes == file_size_bytes(metadata, tensors),
                 "predicted size {} is not {}", file_size_bytes(metadata, tensors),
                 layout.file_size_bytes);
    layout.tensors = std::move(tensors);
    return layout;
}

std::vector<Layout> make_split_layout(const Metadata& metadata, std::vector<PlannedTensor> tensors,
                                      uint64_t max_shard_bytes) {
    constexpr size_t kMaxShards = 512;
    if (max_shard_bytes == 0) {
        throw Error(ErrorKind::usage, "the largest size of a shard must not be 0");
    }
    check_plan(metadata, tensors);
    const auto n_tensors = static_cast<int32_t>(tensors.size());
    std::vector<std::vector<PlannedTensor>> groups(1);
    uint64_t group_bytes = 0;
    for (PlannedTensor& tensor : tensors) {
        // Only the first shard has general.alignment; the others have the default.
        const uint64_t alignment = groups.size() == 1 ? alignment_of(metadata) : kDefaultAlignment;
        const uint64_t size_bytes = padded(tensor_size_bytes(tensor.type, tensor.ne), alignment);
        if (!groups.back().empty() && group_bytes + size_bytes > max_shard_bytes) {
            groups.emplace_back();
            group_bytes = 0;
        }
        group_bytes += size_bytes;
        groups.back().push_back(std::move(tensor));
    }
    if (groups.size() > kMaxShards) {
        throw Error(ErrorKind::usage,
                    fmt::format("shards of {} bytes would make {} files, the limit is {}",
                                max_shard_bytes, groups.size(), kMaxShards),
                    {}, "allow larger shards");
    }
    std::vector<Layout> layouts;
    for (size_t i = 0; i < groups.size(); ++i) {
        Metadata own = i == 0 ? without_split_keys(metadata) : Metadata{};
        // This order is the one that llama-gguf-split leaves.
        set_value(own, kKeySplitNo, Value::scalar(static_cast<uint16_t>(i)));
        set_value(own, kKeySplitTensors, Value::scalar(n_tensors));
        set_value(own, kKeySplitCount, Value::scalar(static_cast<uint16_t>(groups.size())));
        layouts.push_back(make_layout(own, std::move(groups[i])));
    }
    return layouts;
}

}  // namespace voodoo::gguf
