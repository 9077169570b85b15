#include "quant/candidates.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "quant/codec.h"

// The innermost loops are compiled for several instruction sets and chosen at load time, so that a
// portable build still uses wide vectors. (Sanitizers run before the loader's choice would work.)
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VOODOO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VOODOO_CLONES
#endif

namespace voodoo::quant {
namespace {

/// Columns that are decoded at a time: a multiple of every block size, small enough for the
/// first-level cache.
constexpr int64_t kPiece = 512;
/// Distance between a tile's rows. Padded: at a power of two the rows of a column would share a few
/// cache sets.
constexpr int64_t kTileStride = kPiece + 16;
constexpr int kLanes = 32;

VOODOO_CLONES void scale_into(float* dst, const float* src, float p, int64_t n) {
    for (int64_t i = 0; i < n; ++i) dst[i] = p * src[i];
}

VOODOO_CLONES void add_scaled(float* dst, const float* src, float p, int64_t n) {
    for (int64_t i = 0; i < n; ++i) dst[i] += p * src[i];
}

/// Lane sums in float, their total in double. A fixed order of additions, whatever the vector
/// width.
VOODOO_CLONES double dot(const float* a, const float* b, int64_t n) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
    }
    double sum = 0.0;
    for (; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    for (const float lane : lanes) sum += static_cast<double>(lane);
    return sum;
}

/// sum of w (a - b)^2; b null: zeros, w null: ones.
VOODOO_CLONES double weighted_squares(const float* a, const float* b, const float* w, int64_t n) {
    float lanes[kLanes] = {};
    const auto term = [&](int64_t i) {
        const float d = a[i] - (b != nullptr ? b[i] : 0.0f);
        return (w != nullptr ? w[i] : 1.0f) * d * d;
    };
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
    }
    double sum = 0.0;
    for (; i < n; ++i) sum += static_cast<double>(term(i));
    for (const float lane : lanes) sum += static_cast<double>(lane);
    return sum;
}

/// Round to nearest even; NaN stays NaN.
VOODOO_CLONES void round_to_bf16(ggml_bf16_t* dst, const float* src, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(src[i]);
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const uint32_t quiet = (bits >> 16) | 64u;
        const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        dst[i].bits = static_cast<uint16_t>(is_nan ? quiet : rounded);
    }
}

/// dst[c * dst_stride + r] = src[r * src_stride + c] for r < n_rows, c < n_cols.
template <typename T>
void transpose(T* dst, int64_t dst_stride, const T* src, int64_t src_stride, int64_t n_rows,
               int64_t n_cols) {
    constexpr int64_t kSide = 16;
    for (int64_t c0 = 0; c0 < n_cols; c0 += kSide) {
        const int64_t c1 = std::min(c0 + kSide, n_cols);
        for (int64_t c = c0; c < c1; ++c) {
            T* out = dst + c * dst_stride;
            const T* in = src + c;
            for (int64_t r = 0; r < n_rows; ++r) out[r] = in[r * src_stride];
        }
    }
}

/// A block of rows of one matrix.
struct RowBlock {
    int64_t matrix;
    int64_t row;  // first, within the matrix
    int64_t n_rows;
    int64_t first_row;  // through all matrices
};

int64_t blocks_per_matrix(const MatrixShape& shape) {
    return (shape.n_rows + kRowBlock - 1) / kRowBlock;
}

RowBlock row_block(const MatrixShape& shape, int64_t block) {
    const int64_t per_matrix = blocks_per_matrix(shape);
    const int64_t matrix = block / per_matrix;
    const int64_t row = block % per_matrix * kRowBlock;
    return {matrix, row, std::min(kRowBlock, shape.n_rows - row), matrix * shape.n_rows + row};
}

/// Where the codes of one row's piece are.
struct Decoder {
    explicit Decoder(const CandidateView& candidate)
        : view(candidate), info(type_info(candidate.type)) {}

    void operator()(int64_t row, int64_t column, int64_t n, float* out) const {
        to_float(view.type,
                 view.data + static_cast<uint64_t>(row) * view.row_size_bytes +
                     static_cast<uint64_t>(column / info.block_size) * info.block_bytes,
                 out, n);
    }

    CandidateView view;
    const TypeInfo& info;
};

/// A candidate that takes part in a mix.
struct Term {
    Decoder decode;
    float p;
};

std::vector<Term> active_terms(std::span<const CandidateView> views, std::span<const float> p) {
    VOODOO_CHECK(views.size() == p.size(), "{} candidates, {} weights", views.size(), p.size());
    std::vector<Term> terms;
    for (size_t k = 0; k < views.size(); ++k) {
        if (p[k] != 0.0f) terms.push_back({Decoder(views[k]), p[k]});
    }
    return terms;
}

/// One row's piece of the mixture.
void mix_piece(const std::vector<Term>& terms, int64_t row, int64_t column, int64_t n, float* out) {
    if (terms.empty()) {
        std::fill_n(out, n, 0.0f);
        return;
    }
    alignas(64) float scratch[kPiece];
    for (size_t k = 0; k < terms.size(); ++k) {
        const Term& term = terms[k];
        if (k == 0) {
            term.decode(row, column, n, out);
            if (term.p != 1.0f) scale_into(out, out, term.p, n);
        } else {
            term.decode(row, column, n, scratch);
            add_scaled(out, scratch, term.p, n);
        }
    }
}

template <typename T, typename Output>
void mix_block(const std::vector<Term>& terms, const MatrixShape& shape, const RowBlock& block,
               const Output& out) {
    alignas(64) T tile[kRowBlock * kTileStride];
    for (int64_t column = 0; column < shape.n_per_row; column += kPiece) {
        const int64_t n = std::min(kPiece, shape.n_per_row - column);
        for (int64_t r = 0; r < block.n_rows; ++r) {
            T* row = tile + r * kTileStride;
            if constexpr (std::is_same_v<T, float>) {
                mix_piece(terms, block.first_row + r, column, n, row);
            } else {
                alignas(64) float piece[kPiece];
                mix_piece(terms, block.first_row + r, column, n, piece);
                round_to_bf16(row, piece, n);
            }
            if (out.rows != nullptr) {
                std::memcpy(out.rows + (block.first_row + r) * shape.n_per_row + column, row,
                            static_cast<size_t>(n) * sizeof(T));
            }
        }
        if (out.transposed != nullptr) {
            T* dst = out.transposed + block.matrix * shape.n_per_row * shape.n_rows +
                     column * shape.n_rows + block.row;
            transpose(dst, shape.n_rows, tile, kTileStride, block.n_rows, n);
        }
    }
}

template <typename T, typename Output>
void mix_range(std::span<const CandidateView> views, std::span<const float> p,
               const MatrixShape& shape, const Output& out, int64_t begin, int64_t end) {
    const std::vector<Term> terms = active_terms(views, p);
    for (int64_t b = begin; b < end; ++b) mix_block<T>(terms, shape, row_block(shape, b), out);
}

/// Blocks per task, so that tensors with short rows do not drown in scheduling.
int64_t block_grain(const MatrixShape& shape) {
    return std::max<int64_t>(1, (1 << 16) / (kRowBlock * std::max<int64_t>(1, shape.n_per_row)));
}

std::vector<Decoder> decoders(std::span<const CandidateView> views) {
    return {views.begin(), views.end()};
}

}  // namespace

CandidateView make_view(ggml_type type, const std::byte* data, int64_t n_per_row) {
    return {type, data, row_bytes(type, n_per_row)};
}

int64_t n_row_blocks(const MatrixShape& shape) {
    return shape.n_mat * blocks_per_matrix(shape);
}

void mix_blocks(std::span<const CandidateView> views, std::span<const float> p,
                const MatrixShape& shape, const MixOutput& out, int64_t block_begin,
                int64_t block_end) {
    mix_range<float>(views, p, shape, out, block_begin, block_end);
}

void mix_blocks(std::span<const CandidateView> views, std::span<const float> p,
                const MatrixShape& shape, const MixOutputBf16& out, int64_t block_begin,
                int64_t block_end) {
    mix_range<ggml_bf16_t>(views, p, shape, out, block_begin, block_end);
}

void mix(std::span<const CandidateView> views, std::span<const float> p, const MatrixShape& shape,
         const MixOutput& out, ThreadPool& pool) {
    pool.parallel_for(
        n_row_blocks(shape), block_grain(shape),
        [&](int64_t begin, int64_t end, int) { mix_blocks(views, p, shape, out, begin, end); });
}

void mix(std::span<const CandidateView> views, std::span<const float> p, const MatrixShape& shape,
         const MixOutputBf16& out, ThreadPool& pool) {
    pool.parallel_for(
        n_row_blocks(shape), block_grain(shape),
        [&](int64_t begin, int64_t end, int) { mix_blocks(views, p, shape, out, begin, end); });
}

void contract_blocks(std::span<const CandidateView> views, const float* dw,
                     const MatrixShape& shape, double* partial, float* row_sums,
                     int64_t block_begin, int64_t block_end) {
    const std::vector<Decoder> candidates = decoders(views);
    alignas(64) float scratch[kPiece];
    for (int64_t b = block_begin; b < block_end; ++b) {
        const RowBlock block = row_block(shape, b);
        for (size_t k = 0; k < candidates.size(); ++k) {
            double block_sum = 0.0;
            for (int64_t row = block.first_row; row < block.first_row + block.n_rows; ++row) {
                double row_sum = 0.0;
                for (int64_t column = 0; column < shape.n_per_row; column += kPiece) {
                    const int64_t n = std::min(kPiece, shape.n_per_row - column);
                    candidates[k](row, column, n, scratch);
                    row_sum += dot(dw + row * shape.n_per_row + column, scratch, n);
                }
                if (row_sums != nullptr) {
                    row_sums[static_cast<int64_t>(k) * shape.total_rows() + row] =
                        static_cast<float>(row_sum);
                }
                block_sum += row_sum;
            }
            partial[b * static_cast<int64_t>(candidates.size()) + static_cast<int64_t>(k)] =
                block_sum;
        }
    }
}

void sum_partials(const double* partial, int64_t n_blocks, int64_t n_candidates, double* c) {
    std::fill_n(c, n_candidates, 0.0);
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int64_t k = 0; k < n_candidates; ++k) c[k] += partial[b * n_candidates + k];
    }
}

void contract(std::span<const CandidateView> views, const float* dw, const MatrixShape& shape,
              double* c, float* row_sums, ThreadPool& pool) {
    const int64_t n_blocks = n_row_blocks(shape);
    const auto n_candidates = static_cast<int64_t>(views.size());
    std::vector<double> partial(static_cast<size_t>(n_blocks * n_candidates));
    pool.parallel_for(n_blocks, block_grain(shape), [&](int64_t begin, int64_t end, int) {
        contract_blocks(views, dw, shape, partial.data(), row_sums, begin, end);
    });
    sum_partials(partial.data(), n_blocks, n_candidates, c);
}

ErrorMoments error_moments(std::span<const CandidateView> views, const CandidateView& reference,
                           const MatrixShape& shape, const float* importance, ThreadPool& pool) {
    const std::vector<Decoder> candidates = decoders(views);
    const Decoder decode_reference(reference);
    const int64_t n_blocks = n_row_blocks(shape);
    const size_t n_sums = views.size() + 1;  // the reference's own sum comes last
    std::vector<double> partial(static_cast<size_t>(n_blocks) * n_sums, 0.0);

    pool.parallel_for(n_blocks, block_grain(shape), [&](int64_t begin, int64_t end, int) {
        alignas(64) float exact[kPiece];
        alignas(64) float scratch[kPiece];
        for (int64_t b = begin; b < end; ++b) {
            const RowBlock block = row_block(shape, b);
            const float* weights =
                importance != nullptr ? importance + block.matrix * shape.n_per_row : nullptr;
            double* sums = partial.data() + static_cast<size_t>(b) * n_sums;
            for (int64_t row = block.first_row; row < block.first_row + block.n_rows; ++row) {
                for (int64_t column = 0; column < shape.n_per_row; column += kPiece) {
                    const int64_t n = std::min(kPiece, shape.n_per_row - column);
                    const float* w = weights != nullptr ? weights + column : nullptr;
                    decode_reference(row, column, n, exact);
                    sums[n_sums - 1] += weighted_squares(exact, nullptr, w, n);
                    for (size_t k = 0; k < candidates.size(); ++k) {
                        candidates[k](row, column, n, scratch);
                        sums[k] += weighted_squares(scratch, exact, w, n);
                    }
                }
            }
        }
    });
    ErrorMoments moments;
    moments.error.resize(n_sums);
    sum_partials(partial.data(), n_blocks, static_cast<int64_t>(n_sums), moments.error.data());
    moments.reference = moments.error.back();
    moments.error.pop_back();
    return moments;
}

}  // namespace voodoo::quant
