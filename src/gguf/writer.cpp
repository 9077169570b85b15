#include "gguf/writer.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "gguf/paths.h"

namespace voodoo::gguf {

namespace fs = std::filesystem;

namespace {

void write_zeros(AtomicFile& file, uint64_t size_bytes) {
    static constexpr char kZeros[4096] = {};
    while (size_bytes > 0) {
        const uint64_t piece = std::min<uint64_t>(size_bytes, sizeof(kZeros));
        file.write(kZeros, static_cast<size_t>(piece));
        size_bytes -= piece;
    }
}

}  // namespace

Writer::Writer(const fs::path& path, const Metadata& metadata, std::vector<PlannedTensor> tensors) {
    add_shard(path, make_layout(metadata, std::move(tensors)));
}

Writer Writer::split(const fs::path& prefix, const Metadata& metadata,
                     std::vector<PlannedTensor> tensors, uint64_t max_shard_bytes) {
    std::vector<Layout> layouts = make_split_layout(metadata, std::move(tensors), max_shard_bytes);
    Writer writer;
    const auto n_shards = static_cast<uint32_t>(layouts.size());
    for (uint32_t i = 0; i < n_shards; ++i) {
        writer.add_shard(shard_path(prefix, i, n_shards), std::move(layouts[i]));
    }
    return writer;
}

void Writer::add_shard(const fs::path& path, Layout layout) {
    auto file = std::make_unique<AtomicFile>(path);
    file->write(layout.header);
    shards_.push_back({path, std::move(layout), std::move(file)});
}

uint64_t Writer::planned_size_bytes() const {
    return std::accumulate(
        shards_.begin(), shards_.end(), uint64_t{0},
        [](uint64_t sum, const Shard& shard) { return sum + shard.layout.file_size_bytes; });
}

std::vector<fs::path> Writer::paths() const {
    std::vector<fs::path> result;
    for (const Shard& shard : shards_) {
        result.push_back(shard.path);
    }
    return result;
}

void Writer::begin_tensor(std::string_view name) {
    VOODOO_CHECK(!committed_, "tensor '{}' after commit", name);
    if (in_tensor_) {
        finish_tensor();
    }
    if (tensor_ == shards_[shard_].layout.tensors.size() && shard_ + 1 < shards_.size()) {
        ++shard_;
        tensor_ = 0;
    }
    const std::vector<PlannedTensor>& tensors = shards_[shard_].layout.tensors;
    VOODOO_CHECK(tensor_ < tensors.size(), "tensor '{}' after the last planned one", name);
    VOODOO_CHECK(tensors[tensor_].name == name, "tensor '{}' where '{}' is planned", name,
                 tensors[tensor_].name);
    in_tensor_ = true;
    written_bytes_ = 0;
}

void Writer::write(std::span<const std::byte> bytes) {
    VOODOO_CHECK(in_tensor_, "bytes outside a tensor");
    const Shard& shard = shards_[shard_];
    VOODOO_CHECK(bytes.size() <= shard.layout.sizes_bytes[tensor_] - written_bytes_,
                 "tensor '{}' gets more than {} bytes", shard.layout.tensors[tensor_].name,
                 shard.layout.sizes_bytes[tensor_]);
    shard.file->write(bytes.data(), bytes.size());
    written_bytes_ += bytes.size();
}

void Writer::write_tensor(std::string_view name, std::span<const std::byte> bytes) {
    begin_tensor(name);
    write(bytes);
    finish_tensor();
}

void Writer::finish_tensor() {
    const Shard& shard = shards_[shard_];
    const uint64_t size_bytes = shard.layout.sizes_bytes[tensor_];
    VOODOO_CHECK(written_bytes_ == size_bytes, "tensor '{}' has {} bytes, not {}",
                 shard.layout.tensors[tensor_].name, written_bytes_, size_bytes);
    write_zeros(*shard.file, padded(size_bytes, shard.layout.alignment) - size_bytes);
    in_tensor_ = false;
    ++tensor_;
}

void Writer::commit() {
    VOODOO_CHECK(!committed_, "second commit");
    if (in_tensor_) {
        finish_tensor();
    }
    for (const Shard& shard : shards_) {
        VOODOO_CHECK(shard.file->position() == shard.layout.file_size_bytes,
                     "{} has {} of {} bytes: tensors are missing", shard.path.string(),
                     shard.file->position(), shard.layout.file_size_bytes);
    }
    committed_ = true;
    if (shards_.size() > 1) {
        // One of an earlier run must not be seen together with new shards.
        std::error_code error;
        fs::remove(shards_.front().path, error);
        if (error) {
            throw Error(ErrorKind::io, fmt::format("can't replace file: {}", error.message()),
                        shards_.front().path.string());
        }
    }
    for (auto shard = shards_.rbegin(); shard != shards_.rend(); ++shard) {
        shard->file->commit();
    }
}

}  // namespace voodoo::gguf
