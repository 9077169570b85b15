// Typed reading of ggml's op_params words.
#pragma once

#include <ggml.h>

#include <cstring>

namespace voodoo::autodiff::rules {

/// Word `i` of op_params as a float.
inline float param_f32(const ggml_tensor* node, int i) {
    float value = 0.0F;
    std::memcpy(&value, node->op_params + i, sizeof(value));
    return value;
}

/// Word `i` of op_params as an integer.
inline int32_t param_i32(const ggml_tensor* node, int i) {
    return node->op_params[i];
}

}  // namespace voodoo::autodiff::rules
