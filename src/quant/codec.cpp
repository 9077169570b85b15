#include "quant/codec.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "ggml-cpu.h"

namespace voodoo::quant {
namespace {

/// Weights that one call of the quantizer gets at least, as in llama-quantize.
constexpr int64_t kMinChunk = 32 * 512;

bool all_finite(const float* x, int64_t n) {
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
        finite &= (std::bit_cast<uint32_t>(x[i]) & 0x7f800000u) != 0x7f800000u;
    }
    return finite;
}

/// The types whose encoder looks points up on a grid, and aborts where sums in the search
/// overflowed.
bool searches_grid(ggml_type type) {
    switch (type) {
        case GGML_TYPE_IQ1_S:
        case GGML_TYPE_IQ1_M:
        case GGML_TYPE_IQ2_XXS:
        case GGML_TYPE_IQ2_XS:
        case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ3_XXS:
        case GGML_TYPE_IQ3_S:
            return true;
        default:
            return false;
    }
}

/// What a block holds, as far as it decides whether a type can encode it.
struct BlockFacts {
    float max_abs = 0.0f;
    float max_importance = 0.0f;
};

BlockFacts facts_of(const float* x, const float* importance, int64_t n) {
    BlockFacts facts;
    for (int64_t i = 0; i < n; ++i) facts.max_abs = std::max(facts.max_abs, std::fabs(x[i]));
    for (int64_t i = 0; importance != nullptr && i < n; ++i) {
        facts.max_importance = std::max(facts.max_importance, importance[i]);
    }
    return facts;
}

/// The search squares sums of importance * x^2 (x^3 without importances) in float; beyond these
/// limits they overflow. Trained weights are far below.
bool overflows_search(const BlockFacts& facts, bool have_importance) {
    constexpr float kMaxAbs = 1e5f;
    constexpr float kMaxProduct = 1e16f;
    if (facts.max_abs > kMaxAbs) return true;
    return have_importance && facts.max_importance * facts.max_abs * facts.max_abs > kMaxProduct;
}

/// Why `row` can't be encoded; empty if it can.
std::string source_problem(const TypeInfo& info, const float* row, int64_t n_per_row,
                           const float* importance) {
    if (!all_finite(row, n_per_row)) return "the source has a value that is not finite";
    const bool uses_importance = importance != nullptr && info.imatrix != ImatrixNeed::none;
    const bool grid = searches_grid(info.type);
    if (!uses_importance && !grid) return {};
    for (int64_t i = 0; i < n_per_row; i += info.block_size) {
        const BlockFacts facts =
            facts_of(row + i, uses_importance ? importance + i : nullptr, info.block_size);
        if (uses_importance && facts.max_importance == 0.0f && facts.max_abs > 0.0f) {
            return fmt::format(
                "the importances of columns {} to {} are all zero, the weights are not", i,
                i + info.block_size - 1);
        }
        if (grid && overflows_search(facts, uses_importance)) {
            return fmt::format("columns {} to {} are too large for this type's search", i,
                               i + info.block_size - 1);
        }
    }
    return {};
}

/// Encodes rows of one matrix; returns the first row that can't be (relative) and why, or n_rows.
struct ChunkResult {
    int64_t bad_row;
    std::string reason;
};

ChunkResult encode_chunk(const Encoder& encoder, const TypeInfo& info, const float* src,
                         int64_t n_rows, int64_t n_per_row, const float* importance, std::byte* dst,
                         std::vector<float>& decoded) {
    for (int64_t r = 0; r < n_rows; ++r) {
        std::string reason = source_problem(info, src + r * n_per_row, n_per_row, importance);
        if (!reason.empty()) return {r, std::move(reason)};
    }
    const size_t row_size = row_bytes(info.type, n_per_row);
    const size_t size = static_cast<size_t>(n_rows) * row_size;
    const size_t written = encoder.encode_rows(info.type, src, n_rows, n_per_row, importance, dst);
    VOODOO_CHECK(written == size, "the encoder wrote {} bytes instead of {}", written, size);
    decoded.resize(static_cast<size_t>(n_per_row));
    for (int64_t r = 0; r < n_rows; ++r) {
        to_float(info.type, dst + static_cast<size_t>(r) * row_size, decoded.data(), n_per_row);
        if (!all_finite(decoded.data(), n_per_row)) {
            return {r, "the encoded row decodes to a value that is not finite"};
        }
    }
    if (!encoder.validate_rows(info.type, dst, size)) return {0, "the encoded rows are not valid"};
    return {n_rows, {}};
}

void check_importance(const float* importance, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        if (!(importance[i] >= 0.0f) || std::isinf(importance[i])) {
            throw Error(ErrorKind::bad_file,
                        fmt::format("the importance matrix has the value {}", importance[i]), {},
                        "compute it again");
        }
    }
}

}  // namespace

EncodeResult encode_rows(const Encoder& encoder, ggml_type type, const float* src,
                         const MatrixShape& shape, int64_t first_row, int64_t n_rows,
                         const float* imatrix, std::byte* dst, ThreadPool& pool,
                         const Cancellation* cancellation) {
    const TypeInfo& info = type_info(type);
    VOODOO_CHECK(type == GGML_TYPE_F32 || is_legal(type, shape.n_per_row, imatrix != nullptr, true),
                 "{} is not legal for rows of {} values", info.name, shape.n_per_row);
    VOODOO_CHECK(first_row >= 0 && n_rows >= 0 && first_row + n_rows <= shape.total_rows(),
                 "rows {} + {} of {}", first_row, n_rows, shape.total_rows());
    if (imatrix != nullptr) check_importance(imatrix, shape.n_per_row * shape.n_mat);

    const int64_t n_per_row = shape.n_per_row;
    const size_t row_size = row_bytes(type, n_per_row);
    const int64_t grain = std::max<int64_t>(1, (kMinChunk + n_per_row - 1) / n_per_row);
    std::vector<std::vector<float>> decoded(static_cast<size_t>(pool.size()));
    std::mutex mutex;
    std::atomic<int64_t> bad_row{std::numeric_limits<int64_t>::max()};
    std::string reason;

    pool.parallel_for(n_rows, grain, [&](int64_t begin, int64_t end, int worker) {
        // A chunk may span matrices, each with importances of its own.
        for (int64_t row = begin; row < end;) {
            if (cancellation != nullptr) cancellation->check();
            const int64_t global = first_row + row;
            if (global > bad_row.load(std::memory_order_relaxed)) return;
            const int64_t matrix = global / shape.n_rows;
            const int64_t n = std::min(end - row, (matrix + 1) * shape.n_rows - global);
            const ChunkResult result = encode_chunk(
                encoder, info, src + row * n_per_row, n, n_per_row,
                imatrix != nullptr ? imatrix + matrix * n_per_row : nullptr,
                dst + static_cast<size_t>(row) * row_size, decoded[static_cast<size_t>(worker)]);
            if (result.bad_row < n) {
                const std::lock_guard lock(mutex);
                if (global + result.bad_row < bad_row.load()) {
                    bad_row.store(global + result.bad_row);
                    reason = result.reason;
                }
                return;
            }
            row += n;
        }
    });
    if (reason.empty()) return {};
    return {false, fmt::format("{} (row {})", reason, bad_row.load())};
}

EncodeResult encode(const Encoder& encoder, ggml_type type, const float* src,
                    const MatrixShape& shape, const float* imatrix, std::byte* dst,
                    ThreadPool& pool, const Cancellation* cancellation) {
    return encode_rows(encoder, type, src, shape, 0, shape.total_rows(), imatrix, dst, pool,
                       cancellation);
}

void to_float(ggml_type type, const std::byte* src, float* dst, int64_t n_elements) {
    // The CPU backend's conversions of half floats may use a table that this fills.
    static const bool initialized = [] {
        ggml_cpu_init();
        return true;
    }();
    static_cast<void>(initialized);
    switch (type) {
        case GGML_TYPE_F32:
            std::memcpy(dst, src, static_cast<size_t>(n_elements) * sizeof(float));
            return;
        case GGML_TYPE_F16:
            ggml_cpu_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(src), dst, n_elements);
            return;
        case GGML_TYPE_BF16:
            ggml_cpu_bf16_to_fp32(reinterpret_cast<const ggml_bf16_t*>(src), dst, n_elements);
            return;
        default:
            break;
    }
    const TypeInfo& info = type_info(type);
    VOODOO_CHECK(n_elements % info.block_size == 0, "{} values are no whole blocks of {}",
                 n_elements, info.name);
    ggml_get_type_traits(type)->to_float(src, dst, n_elements);
}

void to_float(ggml_type type, const std::byte* src, float* dst, int64_t n_elements,
              ThreadPool& pool) {
    // A multiple of every block size.
    constexpr int64_t kGrain = 1 << 15;
    const TypeInfo& info = type_info(type);
    pool.parallel_for(n_elements, kGrain, [&](int64_t begin, int64_t end, int) {
        const size_t offset = static_cast<size_t>(begin / info.block_size) * info.block_bytes;
        to_float(type, src + offset, dst + begin, end - begin);
    });
}

}  // namespace voodoo::quant
