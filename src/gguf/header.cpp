#include "gguf/header.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace voodoo::gguf {

namespace {

constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;  // length, 1 letter, type, 1 byte of value
constexpr uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // length, 1 letter, n_dims, 1 dim, type, offset

/// Reads forward within the header's bytes and throws before it would read past them.
class Cursor {
public:
    Cursor(std::span<const std::byte> file, const std::string& where)
        : bytes_(file.first(std::min<uint64_t>(file.size(), kMaxHeaderBytes))),
          where_(where),
          end_(file.size() > kMaxHeaderBytes ? "header limit" : "file") {}

    uint64_t position() const { return position_; }
    uint64_t remaining() const { return bytes_.size() - position_; }
    const std::string& where() const { return where_; }

    [[noreturn]] void fail(const std::string& message) const {
        throw Error(ErrorKind::bad_file, message, where_);
    }

    template <typename T>
    T number(std::string_view what) {
        T value;
        const std::string_view raw = take(sizeof(T), what);
        std::memcpy(&value, raw.data(), sizeof(T));
        return value;
    }

    std::string_view take(uint64_t size_bytes, std::string_view what) {
        if (size_bytes > remaining()) {
            fail(fmt::format("{} ends inside {} at byte {} ({} bytes wanted, {} left)", end_, what,
                             position_, size_bytes, remaining()));
        }
        const auto* begin = reinterpret_cast<const char*>(bytes_.data() + position_);
        position_ += size_bytes;
        return {begin, static_cast<size_t>(size_bytes)};
    }

    std::string_view text(std::string_view what) {
        const auto size_bytes = number<uint64_t>(what);
        return take(size_bytes, what);
    }

private:
    std::span<const std::byte> bytes_;
    const std::string& where_;
    std::string_view end_;  // what ends where bytes_ ends
    uint64_t position_ = 0;
};

bool has_control_bytes(std::string_view text) {
    return std::any_of(text.begin(), text.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 0x20 || byte == 0x7f;
    });
}

/// Sorting, not hashing: a hostile file can't make it slow.
void check_unique(std::vector<std::string_view> names, std::string_view what,
                  const Cursor& cursor) {
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin != names.end()) {
        cursor.fail(fmt::format("duplicate {} '{}'", what, printable(*twin)));
    }
}

std::string parse_key(Cursor& cursor, uint64_t index) {
    const std::string what = fmt::format("key {}", index);
    const std::string_view key = cursor.text(what);
    if (key.empty()) {
        cursor.fail(fmt::format("{} is empty", what));
    }
    if (key.size() > kMaxKeyBytes) {
        cursor.fail(
            fmt::format("{} is {} bytes long, the limit is {}", what, key.size(), kMaxKeyBytes));
    }
    if (has_control_bytes(key)) {
        cursor.fail(fmt::format("{} '{}' has control characters", what, printable(key)));
    }
    return std::string(key);
}

Value parse_strings(Cursor& cursor, std::string_view what, uint64_t count, uint64_t& n_strings) {
    // Each string has at least its length, so the count is bounded before anything is reserved.
    if (count > cursor.remaining() / sizeof(uint64_t)) {
        cursor.fail(fmt::format("{} claims {} strings, but only {} bytes are left", what, count,
                                cursor.remaining()));
    }
    if (count > kMaxStrings - n_strings) {
        cursor.fail(
            fmt::format("{} claims {} strings, more than {} in all", what, count, kMaxStrings));
    }
    n_strings += count;
    std::vector<std::string> texts;
    texts.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) {
        texts.emplace_back(cursor.text(what));
    }
    return Value::texts(std::move(texts));
}

Value parse_array(Cursor& cursor, const std::string& what, uint64_t& n_strings) {
    const auto element = static_cast<ValueType>(cursor.number<uint32_t>(what));
    const auto count = cursor.number<uint64_t>(what);
    if (element == ValueType::array) {
        cursor.fail(fmt::format("{} is a nested array, which is not supported", what));
    }
    if (element == ValueType::string) {
        return parse_strings(cursor, what, count, n_strings);
    }
    const size_t size_bytes = element_size_bytes(element);
    if (size_bytes == 0) {
        cursor.fail(fmt::format("{} has elements of unknown type {}", what,
                                static_cast<uint32_t>(element)));
    }
    if (count > cursor.remaining() / size_bytes) {
        cursor.fail(fmt::format("{} claims {} elements of {}, but only {} bytes are left", what,
                                count, to_string(element), cursor.remaining()));
    }
    return Value::from_packed(element, true, std::string(cursor.take(count * size_bytes, what)));
}

Value parse_value(Cursor& cursor, const std::string& key, uint64_t& n_strings) {
    const std::string what = fmt::format("the value of '{}'", printable(key));
    const auto type = static_cast<ValueType>(cursor.number<uint32_t>(what));
    if (type == ValueType::array) {
        return parse_array(cursor, what, n_strings);
    }
    if (type == ValueType::string) {
        return Value::text(std::string(cursor.text(what)));
    }
    const size_t size_bytes = element_size_bytes(type);
    if (size_bytes == 0) {
        cursor.fail(fmt::format("{} has unknown type {}", what, static_cast<uint32_t>(type)));
    }
    return Value::from_packed(type, false, std::string(cursor.take(size_bytes, what)));
}

Metadata parse_metadata(Cursor& cursor, uint64_t n_keys) {
    Metadata metadata;
    metadata.reserve(static_cast<size_t>(n_keys));
    uint64_t n_strings = 0;
    for (uint64_t i = 0; i < n_keys; ++i) {
        std::string key = parse_key(cursor, i);
        Value value = parse_value(cursor, key, n_strings);
        metadata.push_back({std::move(key), std::move(value)});
    }
    std::vector<std::string_view> keys;
    keys.reserve(metadata.size());
    for (const KeyValue& kv : metadata) {
        keys.emplace_back(kv.key);
    }
    check_unique(std::move(keys), "key", cursor);
    return metadata;
}

uint64_t parse_alignment(const Metadata& metadata, const Cursor& cursor) {
    const Value* value = find_value(metadata, kKeyAlignment);
    if (value == nullptr) {
        return kDefaultAlignment;
    }
    if (value->type() != ValueType::u32) {
        cursor.fail(fmt::format("'{}' is of type {}, must be u32", kKeyAlignment,
                                to_string(value->type())));
    }
    const uint64_t alignment = value->at<uint32_t>();
    if (!is_valid_alignment(alignment)) {
        cursor.fail(fmt::format("'{}' is {}, must be a power of two from 8 to {}", kKeyAlignment,
                                alignment, kMaxAlignment));
    }
    return alignment;
}

std::string parse_tensor_name(Cursor& cursor, uint64_t index) {
    const std::string what = fmt::format("the name of tensor {}", index);
    const std::string_view name = cursor.text(what);
    if (name.empty()) {
        cursor.fail(fmt::format("{} is empty", what));
    }
    if (name.size() >= GGML_MAX_NAME) {
        cursor.fail(fmt::format("{} is {} bytes long, the limit is {}", what, name.size(),
                                GGML_MAX_NAME - 1));
    }
    if (has_control_bytes(name)) {
        cursor.fail(fmt::format("{} '{}' has control characters", what, printable(name)));
    }
    return std::string(name);
}

void parse_shape(Cursor& cursor, const std::string& what, TensorInfo& tensor) {
    const auto n_dims = cursor.number<uint32_t>(what);
    if (n_dims < 1 || n_dims > tensor.ne.size()) {
        cursor.fail(
            fmt::format("{} has {} dimensions, must be 1 to {}", what, n_dims, tensor.ne.size()));
    }
    tensor.n_dims = static_cast<int>(n_dims);
    for (uint32_t i = 0; i < n_dims; ++i) {
        tensor.ne[i] = cursor.number<int64_t>(what);
        if (tensor.ne[i] <= 0) {
            cursor.fail(fmt::format("{} has size {} in dimension {}, must be positive", what,
                                    tensor.ne[i], i));
        }
    }
    if (!find_n_elements(tensor.ne)) {
        cursor.fail(fmt::format("{} has more elements than 63 bits can count", what));
    }
}

/// Offsets are still relative to the data section here.
TensorInfo parse_tensor(Cursor& cursor, uint64_t index, int shard) {
    TensorInfo tensor;
    tensor.shard = shard;
    tensor.name = parse_tensor_name(cursor, index);
    const std::string what = fmt::format("tensor '{}'", printable(tensor.name));
    parse_shape(cursor, what, tensor);
    const auto type = cursor.number<int32_t>(what);
    if (!is_known_type(type)) {
        cursor.fail(fmt::format(
            "{} has type {}, which this ggml does not know or no longer supports", what, type));
    }
    tensor.type = static_cast<ggml_type>(type);
    if (tensor.ne[0] % ggml_blck_size(tensor.type) != 0) {
        cursor.fail(fmt::format("{} has rows of {}, no multiple of the {} that {} needs", what,
                                tensor.ne[0], ggml_blck_size(tensor.type),
                                ggml_type_name(tensor.type)));
    }
    const std::optional<uint64_t> size_bytes = find_tensor_size_bytes(tensor.type, tensor.ne);
    if (!size_bytes) {
        cursor.fail(fmt::format("{} has more bytes than 64 bits can count", what));
    }
    tensor.size_bytes = *size_bytes;
    tensor.offset = cursor.number<uint64_t>(what);
    return tensor;
}

/// Makes offsets absolute and checks that the data lies in the file, aligned and without overlap.
void place_tensors(Header& header, uint64_t file_size_bytes, const Cursor& cursor) {
    if (header.data_offset > file_size_bytes && !header.tensors.empty()) {
        cursor.fail(
            fmt::format("file ends at byte {} before the tensor data, which should start at {}",
                        file_size_bytes, header.data_offset));
    }
    for (TensorInfo& tensor : header.tensors) {
        if (tensor.offset % header.alignment != 0) {
            cursor.fail(fmt::format("tensor '{}' has offset {}, no multiple of the alignment {}",
                                    printable(tensor.name), tensor.offset, header.alignment));
        }
        const uint64_t available = file_size_bytes - header.data_offset;
        if (tensor.offset > available || tensor.size_bytes > available - tensor.offset) {
            cursor.fail(fmt::format(
                "tensor '{}' ({} bytes at offset {}) reaches beyond the end of the file "
                "({} bytes of tensor data)",
                printable(tensor.name), tensor.size_bytes, tensor.offset, available));
        }
        tensor.offset += header.data_offset;
    }
    std::vector<const TensorInfo*> sorted;
    sorted.reserve(header.tensors.size());
    for (const TensorInfo& tensor : header.tensors) {
        sorted.push_back(&tensor);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
    const auto overlap = std::adjacent_find(sorted.begin(), sorted.end(),
                                            [](const TensorInfo* a, const TensorInfo* b) {
                                                return a->offset + a->size_bytes > b->offset;
                                            });
    if (overlap != sorted.end()) {
        cursor.fail(fmt::format("tensors '{}' and '{}' overlap", printable((*overlap)->name),
                                printable((*std::next(overlap))->name)));
    }
}

uint32_t parse_version(Cursor& cursor) {
    const std::string_view magic = cursor.take(4, "the magic number");
    if (magic != "GGUF") {
        cursor.fail(fmt::format("not a GGUF file: it starts with '{}'", printable(magic)));
    }
    const auto version = cursor.number<uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0) {
        cursor.fail("the file is big-endian, which is not supported");
    }
    if (version != 2 && version != 3) {
        cursor.fail(fmt::format("GGUF version {} is not supported, only 2 and 3 are", version));
    }
    return version;
}

void check_count(const Cursor& cursor, std::string_view what, uint64_t count, uint64_t min_bytes,
                 uint64_t limit) {
    if (count > limit || count > cursor.remaining() / min_bytes) {
        cursor.fail(fmt::format(
            "the header claims {} {}, but only {} bytes are left (and at most {} are accepted)",
            count, what, cursor.remaining(), limit));
    }
}

}  // namespace

Header parse_header(std::span<const std::byte> file, const std::string& where, int shard) {
    Cursor cursor(file, where);
    Header header;
    header.version = parse_version(cursor);
    const uint64_t n_tensors = cursor.number<uint64_t>("the number of tensors");
    const uint64_t n_keys = cursor.number<uint64_t>("the number of keys");
    check_count(cursor, "tensors", n_tensors, kMinTensorBytes, kMaxTensors);
    check_count(cursor, "keys", n_keys, kMinKeyBytes, kMaxKeys);

    header.metadata = parse_metadata(cursor, n_keys);
    header.alignment = parse_alignment(header.metadata, cursor);

    check_count(cursor, "tensors", n_tensors, kMinTensorBytes, kMaxTensors);
    header.tensors.reserve(static_cast<size_t>(n_tensors));
    std::vector<std::string_view> names;
    names.reserve(static_cast<size_t>(n_tensors));
    for (uint64_t i = 0; i < n_tensors; ++i) {
        header.tensors.push_back(parse_tensor(cursor, i, shard));
        names.emplace_back(header.tensors.back().name);
    }
    check_unique(std::move(names), "tensor name", cursor);
    header.data_offset = padded(cursor.position(), header.alignment);
    place_tensors(header, file.size(), cursor);
    return header;
}

}  // namespace voodoo::gguf
