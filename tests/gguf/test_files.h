// Hand-made GGUF bytes, independent of the writer under test, and a folder for the files of one
// test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gguf/reader.h"
#include "gguf/value.h"

namespace voodoo::gguf::test {

/// Appends numbers and strings as the format stores them; any nonsense can be written.
class Bytes {
public:
    template <typename T>
    Bytes& number(T value) {
        char raw[sizeof(T)];
        std::memcpy(raw, &value, sizeof(T));
        data_.append(raw, sizeof(T));
        return *this;
    }
    Bytes& raw(std::string_view bytes) {
        data_.append(bytes);
        return *this;
    }
    Bytes& text(std::string_view bytes) { return number<uint64_t>(bytes.size()).raw(bytes); }
    Bytes& header(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
        return raw("GGUF").number(version).number(n_tensors).number(n_keys);
    }
    Bytes& key(std::string_view name, ValueType type) {
        return text(name).number(static_cast<uint32_t>(type));
    }
    Bytes& tensor(std::string_view name, const std::vector<int64_t>& ne, int32_t type,
                  uint64_t offset) {
        text(name).number(static_cast<uint32_t>(ne.size()));
        for (const int64_t n : ne) {
            number(n);
        }
        return number(type).number(offset);
    }
    Bytes& pad(size_t alignment = 32) {
        data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
        return *this;
    }
    Bytes& zeros(size_t n) {
        data_.append(n, '\0');
        return *this;
    }
    const std::string& str() const { return data_; }

private:
    std::string data_;
};

/// A folder that is removed with the test.
class GgufTest : public ::testing::Test {
protected:
    void SetUp() override;
    void TearDown() override;

    const std::filesystem::path& dir() const { return dir_; }
    std::filesystem::path save(std::string_view name, std::string_view bytes) const;
    File open_bytes(std::string_view bytes) const { return File::open(save("model.gguf", bytes)); }
    /// Opens the bytes and expects Error(bad_file) whose text has `part` and the file's path.
    void expect_bad_file(std::string_view bytes, std::string_view part) const;

private:
    std::filesystem::path dir_;
};

/// Expects Error of a kind whose what() contains `part`.
template <typename Function>
void expect_error(ErrorKind kind, std::string_view part, Function function) {
    try {
        function();
        ADD_FAILURE() << "no error, expected: " << part;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), kind) << error.what();
        EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
            << "'" << part << "' is not in: " << error.what();
    }
}

/// A small valid file with a value of every type, arrays, and four tensors of several types.
std::string rich_file();

std::string_view as_text(std::span<const std::byte> bytes);

}  // namespace voodoo::gguf::test
