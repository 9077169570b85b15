#include "gguf/tensor.h"

#include "base/error.h"

namespace voodoo::gguf {

bool is_known_type(int64_t type) {
    if (type < 0 || type >= GGML_TYPE_COUNT) {
        return false;
    }
    const auto known = static_cast<ggml_type>(type);
    return ggml_blck_size(known) > 0 && ggml_type_size(known) > 0;
}

std::optional<int64_t> find_n_elements(const Shape& ne) {
    int64_t product = 1;
    for (const int64_t n : ne) {
        if (n <= 0 || __builtin_mul_overflow(product, n, &product)) {
            return std::nullopt;
        }
    }
    return product;
}

std::optional<uint64_t> find_tensor_size_bytes(ggml_type type, const Shape& ne) {
    const std::optional<int64_t> n_elements = find_n_elements(ne);
    if (!n_elements || !is_known_type(type) || ne[0] % ggml_blck_size(type) != 0) {
        return std::nullopt;
    }
    const auto n_blocks = static_cast<uint64_t>(*n_elements / ggml_blck_size(type));
    uint64_t size_bytes = 0;
    if (__builtin_mul_overflow(n_blocks, static_cast<uint64_t>(ggml_type_size(type)),
                               &size_bytes)) {
        return std::nullopt;
    }
    return size_bytes;
}

uint64_t tensor_size_bytes(ggml_type type, const Shape& ne) {
    const std::optional<uint64_t> size_bytes = find_tensor_size_bytes(type, ne);
    VOODOO_CHECK(size_bytes.has_value(), "no size for type {} and shape {} x {} x {} x {}",
                 static_cast<int>(type), ne[0], ne[1], ne[2], ne[3]);
    return *size_bytes;
}

int n_dims_of(const Shape& ne) {
    for (int i = 3; i > 0; --i) {
        if (ne[static_cast<size_t>(i)] > 1) {
            return i + 1;
        }
    }
    return 1;
}

}  // namespace voodoo::gguf
