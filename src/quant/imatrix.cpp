#include "quant/imatrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "quant/imatrix_legacy.h"

namespace voodoo::quant {
namespace {

constexpr std::string_view kSumsSuffix = ".in_sum2";
constexpr std::string_view kCountsSuffix = ".counts";
constexpr std::string_view kKeyDatasets = "imatrix.datasets";
constexpr std::string_view kKeyChunkCount = "imatrix.chunk_count";
constexpr std::string_view kKeyChunkSize = "imatrix.chunk_size";

[[noreturn]] void fail(const std::string& where, const std::string& why) {
    throw Error(ErrorKind::bad_file, fmt::format("not a usable importance matrix: {}", why), where,
                "make it again with llama-imatrix or voodoo data");
}

uint32_t read_u32(const gguf::File& file, std::string_view key, const std::string& where) {
    const gguf::Value* value = file.find(key);
    if (value == nullptr) fail(where, fmt::format("the key {} is missing", key));
    if (value->type() != gguf::ValueType::u32)
        fail(where, fmt::format("the key {} is no u32", key));
    return value->at<uint32_t>();
}

std::vector<float> read_floats(const gguf::File& file, const gguf::TensorInfo& tensor,
                               const std::string& where) {
    if (tensor.type != GGML_TYPE_F32) {
        fail(where, fmt::format("the tensor {} is not F32", gguf::printable(tensor.name)));
    }
    std::vector<float> values(static_cast<size_t>(tensor.n_elements()));
    const std::span<const std::byte> data = file.data(tensor);
    VOODOO_CHECK(data.size() == values.size() * sizeof(float), "{} bytes", data.size());
    std::memcpy(values.data(), data.data(), data.size());
    return values;
}

Imatrix read_gguf(const std::filesystem::path& path) {
    const std::string where = path.string();
    const gguf::File file = gguf::File::open(path);
    Imatrix imatrix;
    const gguf::Value* datasets = file.find(kKeyDatasets);
    if (datasets == nullptr || !datasets->is_array() ||
        (datasets->count() > 0 && datasets->element_type() != gguf::ValueType::string)) {
        fail(where, fmt::format("the key {} is missing or no list of names", kKeyDatasets));
    }
    imatrix.datasets = datasets->strings();
    imatrix.chunk_count = read_u32(file, kKeyChunkCount, where);
    imatrix.chunk_size = read_u32(file, kKeyChunkSize, where);

    size_t n_sums = 0;
    size_t n_counts = 0;
    for (const gguf::TensorInfo& tensor : file.tensors()) {
        const std::string_view name = tensor.name;
        if (name.ends_with(kSumsSuffix)) {
            const std::string key(name.substr(0, name.size() - kSumsSuffix.size()));
            imatrix.entries[key].sums = read_floats(file, tensor, where);
            ++n_sums;
        } else if (name.ends_with(kCountsSuffix)) {
            const std::string key(name.substr(0, name.size() - kCountsSuffix.size()));
            for (const float count : read_floats(file, tensor, where)) {
                // The upper limit keeps the conversion defined; no run counts that far.
                if (!(count >= 0.0f) || count > 1e15f) {
                    fail(where, fmt::format("{} counts {} tokens", gguf::printable(key), count));
                }
                imatrix.entries[key].counts.push_back(std::lround(count));
            }
            ++n_counts;
        }
    }
    if (n_sums != n_counts || n_sums != imatrix.entries.size()) {
        fail(where, "an entry has sums without counts, or counts without sums");
    }
    return imatrix;
}

void check_values(const Imatrix& imatrix, const std::string& where) {
    if (imatrix.entries.empty()) fail(where, "it has no entries");
    for (const auto& [name, entry] : imatrix.entries) {
        if (name.empty()) fail(where, "an entry without a name");
        if (entry.counts.empty() || entry.sums.empty() ||
            entry.sums.size() % entry.counts.size() != 0) {
            fail(where, fmt::format("{} has {} sums for {} counts", gguf::printable(name),
                                    entry.sums.size(), entry.counts.size()));
        }
        for (const float value : entry.sums) {
            if (!(value >= 0.0f) || std::isinf(value)) {
                fail(where, fmt::format("{} holds the value {}", gguf::printable(name), value));
            }
        }
    }
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
    return std::as_bytes(std::span<const T>(values));
}

/// Counts as the GGUF format has them: of a legacy entry without calls, whose sums stand as they
/// are, one.
std::vector<float> stored_counts(const Imatrix& imatrix, const ImatrixEntry& entry) {
    std::vector<float> counts;
    for (const int64_t count : entry.counts) {
        counts.push_back(imatrix.is_legacy && count <= 0 ? 1.0f : static_cast<float>(count));
    }
    return counts;
}

}  // namespace

Importance Imatrix::importance(const std::string& tensor_name) const {
    Importance result;
    const auto it = entries.find(tensor_name);
    if (it == entries.end()) return result;
    const ImatrixEntry& entry = it->second;
    VOODOO_CHECK(!entry.counts.empty() && entry.sums.size() % entry.counts.size() == 0,
                 "{}: {} sums for {} counts", tensor_name, entry.sums.size(), entry.counts.size());
    result.values = entry.sums;
    const size_t n_each = entry.sums.size() / entry.counts.size();
    for (size_t m = 0; m < entry.counts.size(); ++m) {
        const std::span<float> values(result.values.data() + m * n_each, n_each);
        // A float, as llama-quantize has it: the division rounds once, to float.
        const auto count = static_cast<float>(entry.counts[m]);
        if (count > 0.0f) {
            for (float& value : values) value /= count;
        } else if (!is_legacy) {
            std::fill(values.begin(), values.end(), 1.0f);
            result.unrouted.push_back(static_cast<int64_t>(m));
        }
    }
    return result;
}

Imatrix read_imatrix(const std::filesystem::path& path) {
    Imatrix imatrix;
    {
        const MappedFile file(path);
        const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                                     file.bytes().size());
        if (!bytes.starts_with("GGUF")) {
            imatrix = parse_legacy_imatrix(bytes, path.string());
        }
    }
    if (!imatrix.is_legacy) imatrix = read_gguf(path);
    check_values(imatrix, path.string());
    return imatrix;
}

void write_imatrix(const Imatrix& imatrix, const std::filesystem::path& path) {
    // One token per chunk is what a legacy matrix amounts to: its counts are calls.
    const uint32_t chunk_size = std::max<uint32_t>(1, imatrix.chunk_size);
    gguf::Metadata metadata;
    gguf::set_value(metadata, "general.type", gguf::Value::text("imatrix"));
    gguf::set_value(metadata, kKeyDatasets, gguf::Value::texts(imatrix.datasets));
    gguf::set_value(metadata, kKeyChunkCount, gguf::Value::scalar<uint32_t>(imatrix.chunk_count));
    gguf::set_value(metadata, kKeyChunkSize, gguf::Value::scalar<uint32_t>(chunk_size));

    std::vector<gguf::PlannedTensor> plan;
    for (const auto& [name, entry] : imatrix.entries) {
        VOODOO_CHECK(!entry.counts.empty() && !entry.sums.empty() &&
                         entry.sums.size() % entry.counts.size() == 0,
                     "{}: {} sums for {} counts", name, entry.sums.size(), entry.counts.size());
        const auto n_mat = static_cast<int64_t>(entry.counts.size());
        const auto n_per_row = static_cast<int64_t>(entry.sums.size()) / n_mat;
        plan.push_back({.name = name + std::string(kSumsSuffix),
                        .type = GGML_TYPE_F32,
                        .ne = {n_per_row, n_mat, 1, 1}});
        plan.push_back({.name = name + std::string(kCountsSuffix),
                        .type = GGML_TYPE_F32,
                        .ne = {1, n_mat, 1, 1}});
    }
    gguf::Writer writer(path, metadata, plan);
    for (const auto& [name, entry] : imatrix.entries) {
        writer.write_tensor(name + std::string(kSumsSuffix), bytes_of(entry.sums));
        const std::vector<float> counts = stored_counts(imatrix, entry);
        writer.write_tensor(name + std::string(kCountsSuffix), bytes_of(counts));
    }
    writer.commit();
}

std::vector<std::string> check_imatrix(Imatrix& imatrix,
                                       const std::map<std::string, MatrixShape>& shapes) {
    constexpr size_t kMaxListed = 10;
    std::vector<std::string> missing;
    std::string problems;
    size_t n_problems = 0;
    for (const auto& [name, shape] : shapes) {
        const auto it = imatrix.entries.find(name);
        if (it == imatrix.entries.end()) {
            missing.push_back(name);
            continue;
        }
        const auto expected = static_cast<size_t>(shape.n_per_row * shape.n_mat);
        if (it->second.sums.size() == expected) continue;
        if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") {
            imatrix.entries.erase(it);
            missing.push_back(name);
            continue;
        }
        if (++n_problems <= kMaxListed) {
            problems +=
                fmt::format("{}{} has {} values instead of {}", problems.empty() ? "" : ", ", name,
                            it->second.sums.size(), expected);
        }
    }
    if (n_problems > 0) {
        throw Error(ErrorKind::bad_file,
                    fmt::format("the importance matrix is of another model: {}{}", problems,
                                n_problems > kMaxListed ? ", ..." : ""),
                    {}, "use one that was computed with this model");
    }
    return missing;
}

std::string importance_hash(const std::vector<float>& values) {
    if (values.empty()) return "none";
    return Sha256().update(values.data(), values.size() * sizeof(float)).hex();
}

}  // namespace voodoo::quant
