// Random tensors, importances and scratch folders for the tests of quant.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/random.h"
#include "quant/candidates.h"
#include "quant/codec.h"

namespace voodoo::quant {

/// A folder that is removed with all in it at the end of a test.
class ScratchFolder {
public:
    ScratchFolder() {
        std::string name =
            (std::filesystem::temp_directory_path() / "voodoo-quant-XXXXXX").string();
        path_ = ::mkdtemp(name.data());
    }
    ~ScratchFolder() {
        std::error_code code;
        std::filesystem::remove_all(path_, code);
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

inline std::vector<float> random_weights(int64_t n, uint64_t seed, double scale = 0.05) {
    Random random(seed, "weights");
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = static_cast<float>(scale * random.normal());
    return values;
}

inline std::vector<float> random_importance(int64_t n, uint64_t seed) {
    Random random(seed, "importance");
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = static_cast<float>(std::exp(2.0 * random.normal()));
    return values;
}

/// The bytes of a tensor encoded with the linked library; the test fails if it can't be.
inline std::vector<std::byte> encoded(ggml_type type, const std::vector<float>& weights,
                                      const MatrixShape& shape,
                                      const std::vector<float>& importance, ThreadPool& pool) {
    std::vector<std::byte> bytes(size_bytes(type, shape.n_per_row, shape.total_rows()));
    const EncodeResult result =
        encode(Encoder(), type, weights.data(), shape,
               importance.empty() ? nullptr : importance.data(), bytes.data(), pool);
    if (!result.usable) throw std::runtime_error(result.reason);
    return bytes;
}

inline std::vector<float> decoded(ggml_type type, const std::vector<std::byte>& bytes, int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    to_float(type, bytes.data(), values.data(), n);
    return values;
}

/// Types whose encoder first builds tables for seconds of CPU time, in every process: they are
/// tested together, in quant_slow_test.
inline bool has_slow_tables(ggml_type type) {
    return type_info(type).init_seconds > 1.0f;
}

inline const std::byte* bytes_of(const std::vector<float>& values) {
    return reinterpret_cast<const std::byte*>(values.data());
}

}  // namespace voodoo::quant
