// Metadata of a GGUF file: ordered (key, value) pairs, kept so exactly that writing them again
// gives the same bytes (type, order, NaN payloads). Not: what the keys mean to a model.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace voodoo::gguf {

/// Type of a value as the file stores it (a u32). `array` is never an element type here: nested
/// arrays are refused.
enum class ValueType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

/// "u8" ... "f64", "bool", "string", "array"; "unknown" for other numbers.
std::string_view to_string(ValueType type);

/// Bytes of one element in the file; 0 for string, array and unknown types.
size_t element_size_bytes(ValueType type);

template <typename T>
inline constexpr bool kIsScalar = std::is_arithmetic_v<T> && sizeof(T) <= 8;

/// The file's type of a C++ scalar.
template <typename T>
constexpr ValueType value_type_of() {
    static_assert(kIsScalar<T>);
    if constexpr (std::is_same_v<T, bool>) {
        return ValueType::boolean;
    } else if constexpr (std::is_floating_point_v<T>) {
        return sizeof(T) == 4 ? ValueType::f32 : ValueType::f64;
    } else {
        constexpr bool is_signed = std::is_signed_v<T>;
        switch (sizeof(T)) {
            case 1:
                return is_signed ? ValueType::i8 : ValueType::u8;
            case 2:
                return is_signed ? ValueType::i16 : ValueType::u16;
            case 4:
                return is_signed ? ValueType::i32 : ValueType::u32;
            default:
                return is_signed ? ValueType::i64 : ValueType::u64;
        }
    }
}

/// One metadata value: a scalar, a string, an array of scalars or an array of strings.
///   Value::scalar<uint32_t>(7)   Value::text("llama")   Value::array<float>(scores)
///   Value::texts(tokens)
class Value {
public:
    template <typename T>
    static Value scalar(T value) {
        return array(std::span<const T>(&value, 1)).with_array_flag(false);
    }
    template <typename T>
    static Value array(std::span<const T> values) {
        std::string packed(values.size_bytes(), '\0');
        if (!values.empty()) {
            std::memcpy(packed.data(), values.data(), values.size_bytes());
        }
        return from_packed(value_type_of<T>(), true, std::move(packed));
    }
    static Value text(std::string value);
    static Value texts(std::vector<std::string> values);
    /// Elements as they lie in the file (little-endian, dense). The size must be a multiple of the
    /// element's.
    static Value from_packed(ValueType element_type, bool is_array, std::string packed);

    /// `array` for arrays, else the scalar's type.
    ValueType type() const { return is_array_ ? ValueType::array : element_type_; }
    ValueType element_type() const { return element_type_; }
    bool is_array() const { return is_array_; }
    /// Elements; 1 for what is no array.
    size_t count() const;

    /// Element i (0 for a scalar). T must be the stored type: Error(internal) otherwise.
    template <typename T>
    T at(size_t i = 0) const {
        VOODOO_CHECK(element_type_ == value_type_of<T>() && i < count(),
                     "value of {} elements of {} read as {} at {}", count(),
                     to_string(element_type_), to_string(value_type_of<T>()), i);
        if constexpr (std::is_same_v<T, bool>) {
            return packed_[i] != 0;  // any non-zero byte is true, as in ggml
        } else {
            T value;
            std::memcpy(&value, packed_.data() + i * sizeof(T), sizeof(T));
            return value;
        }
    }
    /// String i (0 for a single string). Error(internal) if this holds no strings.
    const std::string& text_at(size_t i = 0) const;
    /// All strings; empty for scalars and their arrays.
    const std::vector<std::string>& strings() const { return strings_; }
    /// All elements of a scalar or an array of scalars as the file stores them; empty for strings.
    std::string_view packed() const { return packed_; }

    /// Bytes of the value in the file, without the key and the 4 bytes of its type.
    uint64_t stored_size_bytes() const;

    bool operator==(const Value&) const = default;

private:
    Value() = default;
    Value with_array_flag(bool is_array) &&;

    ValueType element_type_ = ValueType::u8;
    bool is_array_ = false;
    std::string packed_;
    std::vector<std::string> strings_;
};

struct KeyValue {
    std::string key;
    Value value;

    bool operator==(const KeyValue&) const = default;
};

/// Ordered as in the file; keys are unique.
using Metadata = std::vector<KeyValue>;

inline constexpr std::string_view kKeyAlignment = "general.alignment";
inline constexpr std::string_view kKeyArchitecture = "general.architecture";
inline constexpr std::string_view kKeySplitNo = "split.no";
inline constexpr std::string_view kKeySplitCount = "split.count";
inline constexpr std::string_view kKeySplitTensors = "split.tensors.count";

/// First value under a key, or nullptr. Valid as long as the metadata is not changed.
const Value* find_value(const Metadata& metadata, std::string_view key);

/// Replaces the value of a key in place, or appends the pair.
void set_value(Metadata& metadata, std::string_view key, Value value);

/// Removes a key; false if it was not there.
bool remove_value(Metadata& metadata, std::string_view key);

/// The same metadata without the three split.* keys: what a merged file carries.
Metadata without_split_keys(Metadata metadata);

/// Text from a file made fit to print in a message: control and non-ASCII bytes escaped, at most 80
/// bytes kept.
std::string printable(std::string_view text);

}  // namespace voodoo::gguf
