#include "gguf/reader.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <system_error>
#include <utility>

#include "gguf/header.h"
#include "gguf/paths.h"

namespace voodoo::gguf {

namespace fs = std::filesystem;

namespace {

struct Shard {
    fs::path path;
    MappedFile mapping;
    Header header;
};

Shard load_shard(const fs::path& path, int shard) {
    // Opening a pipe or a device would block or misbehave, so look before opening.
    std::error_code error;
    if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
        throw Error(ErrorKind::bad_file, "not a regular file", path.string());
    }
    Shard result{path, MappedFile(path), {}};
    result.header = parse_header(result.mapping.bytes(), path.string(), shard);
    return result;
}

/// Any integer type that is not negative.
std::optional<uint64_t> find_unsigned(const Value& value) {
    const auto checked = [](int64_t number) -> std::optional<uint64_t> {
        return number < 0 ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(number));
    };
    switch (value.type()) {
        case ValueType::u8:
            return value.at<uint8_t>();
        case ValueType::u16:
            return value.at<uint16_t>();
        case ValueType::u32:
            return value.at<uint32_t>();
        case ValueType::u64:
            return value.at<uint64_t>();
        case ValueType::i8:
            return checked(value.at<int8_t>());
        case ValueType::i16:
            return checked(value.at<int16_t>());
        case ValueType::i32:
            return checked(value.at<int32_t>());
        case ValueType::i64:
            return checked(value.at<int64_t>());
        default:
            return std::nullopt;
    }
}

/// A split.* number of one shard; nothing if the key is absent.
std::optional<uint64_t> find_split_number(const Shard& shard, std::string_view key) {
    const Value* value = find_value(shard.header.metadata, key);
    if (value == nullptr) {
        return std::nullopt;
    }
    const std::optional<uint64_t> number = find_unsigned(*value);
    if (!number) {
        throw Error(ErrorKind::bad_file,
                    fmt::format("'{}' is no integer that is zero or more", key),
                    shard.path.string());
    }
    return number;
}

/// Shards of the model that this shard belongs to; 1 for a model in one file (a merged file says
/// 0).
uint64_t n_shards_of(const Shard& shard) {
    constexpr uint64_t kMaxShards = 65535;  // split.count is a u16 in llama.cpp
    const uint64_t count = find_split_number(shard, kKeySplitCount).value_or(0);
    if (count > kMaxShards) {
        throw Error(
            ErrorKind::bad_file,
            fmt::format("'{}' is {}, must be at most {}", kKeySplitCount, count, kMaxShards),
            shard.path.string());
    }
    return std::max<uint64_t>(count, 1);
}

void check_shard_numbers(const Shard& shard, uint64_t number, uint64_t count) {
    const std::optional<uint64_t> no = find_split_number(shard, kKeySplitNo);
    const uint64_t said = n_shards_of(shard);
    if (!no || *no != number || said != count) {
        throw Error(
            ErrorKind::bad_file,
            fmt::format("the file says it is shard {} of {} (counted from 0), expected {} of {}",
                        no ? fmt::to_string(*no) : std::string("?"), said, number, count),
            shard.path.string());
    }
}

/// Paths of all shards of the split model that `opened` belongs to; throws if one is missing.
std::vector<fs::path> shard_paths(const Shard& opened, uint64_t count) {
    const std::optional<ShardName> name = find_shard_name(opened.path);
    if (!name || name->n_shards != count) {
        throw Error(ErrorKind::bad_file,
                    fmt::format("the file is one of {} shards, but its name is not of the form "
                                "<name>-00001-of-{:05}.gguf, so the others can't be found",
                                count, count),
                    opened.path.string(), "give the shards their original names");
    }
    check_shard_numbers(opened, name->shard, count);
    constexpr size_t kMaxNamed = 5;
    std::vector<fs::path> paths;
    std::string missing;
    size_t n_missing = 0;
    for (uint32_t i = 0; i < name->n_shards; ++i) {
        paths.push_back(shard_path(name->prefix, i, name->n_shards));
        std::error_code error;
        if (!fs::exists(paths.back(), error) && ++n_missing <= kMaxNamed) {
            missing += (missing.empty() ? "" : ", ") + paths.back().string();
        }
    }
    if (n_missing > 0) {
        throw Error(ErrorKind::io,
                    fmt::format("{} of the model's {} shards missing: {}{}", n_missing, count,
                                missing, n_missing > kMaxNamed ? ", ..." : ""),
                    opened.path.string(), "put all shards into one folder");
    }
    return paths;
}

void check_tensor_total(const Shard& first, size_t n_tensors) {
    const std::optional<uint64_t> total = find_split_number(first, kKeySplitTensors);
    if (!total || *total != n_tensors) {
        throw Error(ErrorKind::bad_file,
                    fmt::format("'{}' is {}, but the shards hold {} tensors", kKeySplitTensors,
                                total ? fmt::to_string(*total) : std::string("missing"), n_tensors),
                    first.path.string());
    }
}

}  // namespace

File File::open(const fs::path& path) {
    std::vector<Shard> shards;
    shards.push_back(load_shard(path, 0));
    const uint64_t count = n_shards_of(shards[0]);
    if (count > 1) {
        const std::vector<fs::path> paths = shard_paths(shards[0], count);
        shards.clear();
        for (size_t i = 0; i < paths.size(); ++i) {
            shards.push_back(load_shard(paths[i], static_cast<int>(i)));
            check_shard_numbers(shards.back(), i, count);
        }
    }

    File file;
    for (Shard& shard : shards) {
        std::move(shard.header.tensors.begin(), shard.header.tensors.end(),
                  std::back_inserter(file.tensors_));
        file.mappings_.push_back(std::move(shard.mapping));
        file.paths_.push_back(shard.path);
    }
    if (count > 1) {
        check_tensor_total(shards[0], file.tensors_.size());
    }
    file.metadata_ = std::move(shards[0].header.metadata);
    file.alignment_ = shards[0].header.alignment;
    file.version_ = shards[0].header.version;

    file.by_name_.resize(file.tensors_.size());
    std::iota(file.by_name_.begin(), file.by_name_.end(), size_t{0});
    const auto name = [&](size_t i) -> const std::string& { return file.tensors_[i].name; };
    std::sort(file.by_name_.begin(), file.by_name_.end(),
              [&](size_t a, size_t b) { return name(a) < name(b); });
    const auto twin = std::adjacent_find(file.by_name_.begin(), file.by_name_.end(),
                                         [&](size_t a, size_t b) { return name(a) == name(b); });
    if (twin != file.by_name_.end()) {
        throw Error(ErrorKind::bad_file,
                    fmt::format("tensor '{}' is in two shards", printable(name(*twin))),
                    path.string());
    }
    return file;
}

const TensorInfo* File::find_tensor(std::string_view name) const {
    const auto it = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [&](size_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
    return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

std::span<const std::byte> File::data(const TensorInfo& tensor) const {
    VOODOO_CHECK(tensor.shard >= 0 && static_cast<size_t>(tensor.shard) < mappings_.size(),
                 "tensor '{}' belongs to another file", tensor.name);
    const std::span<const std::byte> bytes = mappings_[static_cast<size_t>(tensor.shard)].bytes();
    VOODOO_CHECK(tensor.offset <= bytes.size() && tensor.size_bytes <= bytes.size() - tensor.offset,
                 "tensor '{}' belongs to another file", tensor.name);
    return bytes.subspan(static_cast<size_t>(tensor.offset),
                         static_cast<size_t>(tensor.size_bytes));
}

void File::drop(const TensorInfo& tensor) const {
    VOODOO_CHECK(tensor.shard >= 0 && static_cast<size_t>(tensor.shard) < mappings_.size(),
                 "tensor '{}' belongs to another file", tensor.name);
    mappings_[static_cast<size_t>(tensor.shard)].drop(static_cast<size_t>(tensor.offset),
                                                      static_cast<size_t>(tensor.size_bytes));
}

void File::fail(std::string_view key, const Value& value, std::string_view wanted) const {
    throw Error(
        ErrorKind::bad_file,
        fmt::format(
            "metadata '{}' is of type {}{}, must be {}", printable(key), to_string(value.type()),
            value.is_array() ? fmt::format(" of {}", to_string(value.element_type())) : "", wanted),
        paths_.front().string());
}

std::optional<std::string> File::find_string(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->type() != ValueType::string) {
        fail(key, *value, "a string");
    }
    return value->text_at();
}

std::optional<uint64_t> File::find_u64(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    const std::optional<uint64_t> number = find_unsigned(*value);
    if (!number) {
        fail(key, *value, "an integer that is zero or more");
    }
    return number;
}

std::optional<double> File::find_f64(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    switch (value->type()) {
        case ValueType::f32:
            return static_cast<double>(value->at<float>());
        case ValueType::f64:
            return value->at<double>();
        default:
            fail(key, *value, "a floating-point number");
    }
}

std::optional<bool> File::find_bool(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->type() != ValueType::boolean) {
        fail(key, *value, "a bool");
    }
    return value->at<bool>();
}

std::string File::architecture() const {
    std::optional<std::string> name = find_string(kKeyArchitecture);
    if (!name) {
        throw Error(ErrorKind::bad_file, fmt::format("metadata '{}' is missing", kKeyArchitecture),
                    paths_.front().string());
    }
    return *std::move(name);
}

uint64_t File::total_size_bytes() const {
    return std::accumulate(
        mappings_.begin(), mappings_.end(), uint64_t{0},
        [](uint64_t sum, const MappedFile& mapping) { return sum + mapping.bytes().size(); });
}

}  // namespace voodoo::gguf
