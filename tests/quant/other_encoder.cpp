// A stand-in for another libggml-base: everything comes from the real one, except that Q8_0 rows
// are encoded by an inner function of its own, which has the name of one in the real library.
// Opened the wrong way, the inner call would bind to the real function, and the bytes would be the
// real library's.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "ggml.h"

extern "C" {

void quantize_row_q8_0_ref(const float* src, void* dst, int64_t n) {
    // All zero codes with scale 1 (half float 0x3c00).
    (void)src;
    auto* out = static_cast<uint8_t*>(dst);
    for (int64_t block = 0; block < n / 32; ++block, out += 34) {
        std::memset(out, 0, 34);
        out[1] = 0x3c;
    }
}

size_t ggml_quantize_chunk(ggml_type type, const float* src, void* dst, int64_t start,
                           int64_t n_rows, int64_t n_per_row, const float* imatrix) {
    if (type == GGML_TYPE_Q8_0) {
        const size_t row_size = static_cast<size_t>(n_per_row / 32) * 34;
        for (int64_t row = 0; row < n_rows; ++row) {
            quantize_row_q8_0_ref(src + start + row * n_per_row,
                                  static_cast<char*>(dst) + static_cast<size_t>(row) * row_size,
                                  n_per_row);
        }
        return static_cast<size_t>(n_rows) * row_size;
    }
    static const auto real =
        reinterpret_cast<decltype(&ggml_quantize_chunk)>(::dlsym(RTLD_NEXT, "ggml_quantize_chunk"));
    return real(type, src, dst, start, n_rows, n_per_row, imatrix);
}

const char* ggml_version(void) {
    return "0.0.0-test";
}

#ifdef VOODOO_TEST_OTHER_TYPES
size_t ggml_type_size(ggml_type type) {
    static const auto real =
        reinterpret_cast<decltype(&ggml_type_size)>(::dlsym(RTLD_NEXT, "ggml_type_size"));
    return real(type) + (type == GGML_TYPE_Q4_K ? 2 : 0);
}
#endif

}  // extern "C"
