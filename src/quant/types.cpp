#include "quant/types.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"

namespace voodoo::quant {
namespace {

using enum ImatrixNeed;

// aborts: ggml aborts without an imatrix; row: whole-row statistics; cand: may be chosen; mm, gr:
// runs as MUL_MAT's or GET_ROWS' weight. The costs are orders of magnitude for planning;
// tests/quant/type_costs.cpp prints them for a machine.
// clang-format off
constexpr std::array kTypes = {
    //       type                name       block bytes imatrix   aborts row    cand   mm    gr     init   encode  decode
    TypeInfo{GGML_TYPE_Q1_0,    "Q1_0",     128,  18,   none,     false, false, true,  true, true,  0.0f,    2.0f, 1.0f},
    TypeInfo{GGML_TYPE_IQ1_S,   "IQ1_S",    256,  50,   required, true,  false, true,  true, true, 11.7f,  178.0f, 0.6f},
    TypeInfo{GGML_TYPE_TQ1_0,   "TQ1_0",    256,  54,   none,     false, false, true,  true, true,  0.0f,    4.2f, 0.4f},
    TypeInfo{GGML_TYPE_IQ1_M,   "IQ1_M",    256,  56,   required, false, false, true,  true, true, 11.7f,  155.0f, 0.7f},
    TypeInfo{GGML_TYPE_TQ2_0,   "TQ2_0",    256,  66,   none,     false, false, true,  true, true,  0.0f,    7.5f, 0.6f},
    TypeInfo{GGML_TYPE_IQ2_XXS, "IQ2_XXS",  256,  66,   required, true,  false, true,  true, true,  1.5f,  424.0f, 0.7f},
    TypeInfo{GGML_TYPE_Q2_0,    "Q2_0",      64,  18,   none,     false, false, true,  true, true,  0.0f,    5.2f, 1.3f},
    TypeInfo{GGML_TYPE_IQ2_XS,  "IQ2_XS",   256,  74,   required, true,  false, true,  true, true,  2.7f, 1078.0f, 0.7f},
    TypeInfo{GGML_TYPE_IQ2_S,   "IQ2_S",    256,  82,   required, false, false, true,  true, true,  5.0f,  202.0f, 0.8f},
    TypeInfo{GGML_TYPE_Q2_K,    "Q2_K",     256,  84,   helps,    false, false, true,  true, true,  0.0f,   190.0f, 1.0f},
    TypeInfo{GGML_TYPE_IQ3_XXS, "IQ3_XXS",  256,  98,   required, false, false, true,  true, true,  0.1f,  514.0f, 0.7f},
    TypeInfo{GGML_TYPE_Q3_K,    "Q3_K",     256, 110,   helps,    false, false, true,  true, true,  0.0f,   41.0f, 1.3f},
    TypeInfo{GGML_TYPE_IQ3_S,   "IQ3_S",    256, 110,   helps,    false, false, true,  true, true,  0.2f,  366.0f, 0.7f},
    TypeInfo{GGML_TYPE_IQ4_XS,  "IQ4_XS",   256, 136,   helps,    false, false, true,  true, true,  0.0f,   302.0f, 1.2f},
    TypeInfo{GGML_TYPE_MXFP4,   "MXFP4",     32,  17,   none,     false, false, true,  true, true,  0.0f,    8.3f, 1.5f},
    TypeInfo{GGML_TYPE_IQ4_NL,  "IQ4_NL",    32,  18,   helps,    false, false, true,  true, true,  0.0f,   317.0f, 1.2f},
    TypeInfo{GGML_TYPE_Q4_0,    "Q4_0",      32,  18,   helps,    false, true,  true,  true, true,  0.0f,   33.0f, 0.6f},
    TypeInfo{GGML_TYPE_Q4_K,    "Q4_K",     256, 144,   helps,    false, false, true,  true, true,  0.0f,   168.0f, 0.2f},
    TypeInfo{GGML_TYPE_NVFP4,   "NVFP4",     64,  36,   none,     false, false, true,  true, true,  0.0f,    9.7f, 1.3f},
    TypeInfo{GGML_TYPE_Q4_1,    "Q4_1",      32,  20,   helps,    false, true,  true,  true, true,  0.0f,  164.0f, 0.6f},
    TypeInfo{GGML_TYPE_Q5_0,    "Q5_0",      32,  22,   helps,    false, true,  true,  true, true,  0.0f,   33.0f, 1.2f},
    TypeInfo{GGML_TYPE_Q5_K,    "Q5_K",     256, 176,   helps,    false, false, true,  true, true,  0.0f,   169.0f, 0.3f},
    TypeInfo{GGML_TYPE_Q5_1,    "Q5_1",      32,  24,   helps,    false, true,  true,  true, true,  0.0f,   166.0f, 1.3f},
    TypeInfo{GGML_TYPE_Q6_K,    "Q6_K",     256, 210,   helps,    false, false, true,  true, true,  0.0f,   35.0f, 1.2f},
    TypeInfo{GGML_TYPE_Q8_0,    "Q8_0",      32,  34,   none,     false, false, true,  true, true,  0.0f,     4.0f, 0.2f},
    TypeInfo{GGML_TYPE_BF16,    "BF16",       1,   2,   none,     false, false, true,  true, true,  0.0f,    0.6f, 0.2f},
    TypeInfo{GGML_TYPE_F16,     "F16",        1,   2,   none,     false, false, true,  true, true,  0.0f,    2.7f, 0.3f},
    TypeInfo{GGML_TYPE_F32,     "F32",        1,   4,   none,     false, false, false, true, true,  0.0f,    0.2f, 0.2f},
};
// clang-format on

bool equal_ignoring_case(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        return std::tolower(static_cast<unsigned char>(x)) ==
               std::tolower(static_cast<unsigned char>(y));
    });
}

}  // namespace

std::span<const TypeInfo> all_types() {
    return kTypes;
}

const TypeInfo* find_type_info(ggml_type type) {
    const auto it = std::find_if(kTypes.begin(), kTypes.end(),
                                 [&](const TypeInfo& info) { return info.type == type; });
    return it == kTypes.end() ? nullptr : &*it;
}

const TypeInfo& type_info(ggml_type type) {
    const TypeInfo* info = find_type_info(type);
    VOODOO_CHECK(info != nullptr, "tensor type {} is not in the table", static_cast<int>(type));
    return *info;
}

std::optional<ggml_type> find_type(std::string_view name) {
    for (const TypeInfo& info : kTypes) {
        if (equal_ignoring_case(info.name, name)) return info.type;
    }
    return std::nullopt;
}

bool is_embedding_or_head(std::string_view tensor_name) {
    return tensor_name == "token_embd.weight" || tensor_name == "per_layer_token_embd.weight" ||
           tensor_name == "output.weight";
}

bool is_legal(ggml_type type, int64_t n_per_row, bool have_imatrix, bool is_embedding_or_head) {
    const TypeInfo* info = find_type_info(type);
    if (info == nullptr || !info->candidate) return false;
    if (n_per_row <= 0 || n_per_row % info->block_size != 0) return false;
    if (have_imatrix || info->imatrix != ImatrixNeed::required) return true;
    return is_embedding_or_head && !info->aborts_without_imatrix;
}

uint64_t row_bytes(ggml_type type, int64_t n_per_row) {
    const TypeInfo& info = type_info(type);
    VOODOO_CHECK(n_per_row > 0 && n_per_row % info.block_size == 0,
                 "a row of {} values can't be {}", n_per_row, info.name);
    return static_cast<uint64_t>(n_per_row / info.block_size) * info.block_bytes;
}

uint64_t size_bytes(ggml_type type, int64_t n_per_row, int64_t n_rows) {
    return row_bytes(type, n_per_row) * static_cast<uint64_t>(n_rows);
}

}  // namespace voodoo::quant
