#include "gguf/value.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace voodoo::gguf {

// The file is little-endian and values are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little,
              "GGUF is read and written on little-endian machines only");

std::string_view to_string(ValueType type) {
    switch (type) {
        case ValueType::u8:
            return "u8";
        case ValueType::i8:
            return "i8";
        case ValueType::u16:
            return "u16";
        case ValueType::i16:
            return "i16";
        case ValueType::u32:
            return "u32";
        case ValueType::i32:
            return "i32";
        case ValueType::f32:
            return "f32";
        case ValueType::boolean:
            return "bool";
        case ValueType::string:
            return "string";
        case ValueType::array:
            return "array";
        case ValueType::u64:
            return "u64";
        case ValueType::i64:
            return "i64";
        case ValueType::f64:
            return "f64";
    }
    return "unknown";
}

size_t element_size_bytes(ValueType type) {
    switch (type) {
        case ValueType::u8:
        case ValueType::i8:
        case ValueType::boolean:
            return 1;
        case ValueType::u16:
        case ValueType::i16:
            return 2;
        case ValueType::u32:
        case ValueType::i32:
        case ValueType::f32:
            return 4;
        case ValueType::u64:
        case ValueType::i64:
        case ValueType::f64:
            return 8;
        case ValueType::string:
        case ValueType::array:
            return 0;
    }
    return 0;
}

Value Value::text(std::string value) {
    std::vector<std::string> values;
    values.push_back(std::move(value));
    return texts(std::move(values)).with_array_flag(false);
}

Value Value::texts(std::vector<std::string> values) {
    Value result;
    result.element_type_ = ValueType::string;
    result.is_array_ = true;
    result.strings_ = std::move(values);
    return result;
}

Value Value::from_packed(ValueType element_type, bool is_array, std::string packed) {
    const size_t size_bytes = element_size_bytes(element_type);
    VOODOO_CHECK(size_bytes > 0 && packed.size() % size_bytes == 0 &&
                     (is_array || packed.size() == size_bytes),
                 "{} bytes are no {} of {}", packed.size(), is_array ? "array" : "scalar",
                 to_string(element_type));
    Value result;
    result.element_type_ = element_type;
    result.is_array_ = is_array;
    result.packed_ = std::move(packed);
    return result;
}

Value Value::with_array_flag(bool is_array) && {
    is_array_ = is_array;
    return std::move(*this);
}

size_t Value::count() const {
    return element_type_ == ValueType::string ? strings_.size()
                                              : packed_.size() / element_size_bytes(element_type_);
}

const std::string& Value::text_at(size_t i) const {
    VOODOO_CHECK(element_type_ == ValueType::string && i < strings_.size(),
                 "value of {} elements of {} read as string at {}", count(),
                 to_string(element_type_), i);
    return strings_[i];
}

uint64_t Value::stored_size_bytes() const {
    uint64_t size_bytes = is_array_ ? sizeof(uint32_t) + sizeof(uint64_t) : 0;
    size_bytes += packed_.size();
    for (const std::string& text : strings_) {
        size_bytes += sizeof(uint64_t) + text.size();
    }
    return size_bytes;
}

const Value* find_value(const Metadata& metadata, std::string_view key) {
    const auto it = std::find_if(metadata.begin(), metadata.end(),
                                 [&](const KeyValue& kv) { return kv.key == key; });
    return it == metadata.end() ? nullptr : &it->value;
}

void set_value(Metadata& metadata, std::string_view key, Value value) {
    const auto it = std::find_if(metadata.begin(), metadata.end(),
                                 [&](const KeyValue& kv) { return kv.key == key; });
    if (it != metadata.end()) {
        it->value = std::move(value);
    } else {
        metadata.push_back({std::string(key), std::move(value)});
    }
}

bool remove_value(Metadata& metadata, std::string_view key) {
    return std::erase_if(metadata, [&](const KeyValue& kv) { return kv.key == key; }) > 0;
}

Metadata without_split_keys(Metadata metadata) {
    for (const std::string_view key : {kKeySplitNo, kKeySplitCount, kKeySplitTensors}) {
        remove_value(metadata, key);
    }
    return metadata;
}

std::string printable(std::string_view text) {
    constexpr size_t kMaxBytes = 80;
    std::string result;
    for (const char c : text.substr(0, kMaxBytes)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f) {
            result += c;
        } else {
            result += fmt::format("\\x{:02x}", byte);
        }
    }
    return text.size() > kMaxBytes ? result + "..." : result;
}

}  // namespace voodoo::gguf
