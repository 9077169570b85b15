// Every row of the table against ggml itself.
#include "quant/types.h"

#include <gtest/gtest.h>
#include <strings.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "base/error.h"
#include "ggml-cpu.h"
#include "test_data.h"
#include "type_checks.h"

namespace voodoo::quant {
namespace {

TEST(TypeTable, AgreesWithGgmlOnNamesBlocksAndSizes) {
    for (const TypeInfo& info : all_types()) {
        SCOPED_TRACE(std::string(info.name));
        EXPECT_EQ(strcasecmp(std::string(info.name).c_str(), ggml_type_name(info.type)), 0);
        EXPECT_EQ(info.block_size, ggml_blck_size(info.type));
        EXPECT_EQ(info.block_bytes, ggml_type_size(info.type));
        EXPECT_EQ(row_bytes(info.type, 1024), ggml_row_size(info.type, 1024));
        EXPECT_EQ(size_bytes(info.type, 1024, 7), 7 * ggml_row_size(info.type, 1024));
        EXPECT_EQ(info.aborts_without_imatrix, ggml_quantize_requires_imatrix(info.type));
        EXPECT_GT(info.encode_ns, 0.0f);
        EXPECT_GT(info.decode_ns, 0.0f);
    }
}

TEST(TypeTable, HoldsEveryTypeThatGgmlCanEncodeAndMultiply) {
    std::set<int> known;
    for (const TypeInfo& info : all_types()) known.insert(info.type);
    EXPECT_EQ(known.size(), all_types().size());
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        const ggml_type_traits_cpu* cpu = ggml_get_type_traits_cpu(type);
        const bool multiplies = ggml_blck_size(type) > 0 && cpu->vec_dot != nullptr;
        EXPECT_EQ(known.contains(i), multiplies) << ggml_type_name(type);
    }
}

TEST(TypeTable, AgreesWithTheCpuBackendOnMatmulAndGetRows) {
    for (const TypeInfo& info : all_types()) {
        SCOPED_TRACE(std::string(info.name));
        EXPECT_EQ(info.runs_matmul, ggml_get_type_traits_cpu(info.type)->vec_dot != nullptr);

        // A real look-up and a real product with an all-ones vector: they run, and the values are
        // the decoded ones.
        const MatrixShape shape{256, 3, 1};
        std::vector<std::byte> bytes(size_bytes(info.type, 256, 3));
        for (size_t i = 0; i < bytes.size(); ++i) {
            bytes[i] = static_cast<std::byte>(
                0x11 + i % 3);  // codes without an encoder; as half floats small and finite
        }
        const std::vector<float> expected = decoded(info.type, bytes, shape.n_elements());
        ggml_context* ctx = ggml_init({8 << 20, nullptr, false});
        ggml_tensor* w = ggml_new_tensor_2d(ctx, info.type, 256, 3);
        std::memcpy(w->data, bytes.data(), bytes.size());
        ggml_tensor* ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
        static_cast<int32_t*>(ids->data)[0] = 2;
        ggml_tensor* x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 256);
        std::fill_n(static_cast<float*>(x->data), 256, 1.0f);
        ggml_cgraph* graph = ggml_new_graph(ctx);
        ggml_tensor* row = ggml_get_rows(ctx, w, ids);
        ggml_tensor* product = ggml_mul_mat(ctx, w, x);
        ggml_build_forward_expand(graph, row);
        ggml_build_forward_expand(graph, product);
        ASSERT_EQ(ggml_graph_compute_with_ctx(ctx, graph, 1), GGML_STATUS_SUCCESS);
        for (int i = 0; i < 256; ++i) {
            ASSERT_FLOAT_EQ(static_cast<float*>(row->data)[i],
                            expected[512 + static_cast<size_t>(i)]);
        }
        for (size_t r = 0; r < 3; ++r) {
            double sum = 0.0;
            double magnitude = 0.0;
            for (size_t i = 0; i < 256; ++i) {
                sum += static_cast<double>(expected[r * 256 + i]);
                magnitude += std::fabs(static_cast<double>(expected[r * 256 + i]));
            }
            EXPECT_GT(magnitude, 0.0);
            EXPECT_NEAR(static_cast<float*>(product->data)[r], sum, 0.01 * magnitude) << r;
        }
        ggml_free(ctx);
        EXPECT_TRUE(info.runs_get_rows);
    }
}

TEST(TypeTable, SaysWhichEncodersUseTheImatrixAndTheWholeRow) {
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) expect_true_imatrix_facts(info);
    }
}

TEST(TypeTable, AscendsInBitsPerWeight) {
    const auto types = all_types();
    EXPECT_TRUE(
        std::is_sorted(types.begin(), types.end(), [](const TypeInfo& a, const TypeInfo& b) {
            return a.bits_per_weight() < b.bits_per_weight();
        }));
    EXPECT_DOUBLE_EQ(type_info(GGML_TYPE_Q4_K).bits_per_weight(), 4.5);
    EXPECT_DOUBLE_EQ(type_info(GGML_TYPE_Q8_0).bits_per_weight(), 8.5);
}

TEST(FindType, AcceptsAnyCaseAndNothingElse) {
    for (const TypeInfo& info : all_types()) {
        std::string lower(info.name);
        for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        EXPECT_EQ(find_type(info.name), info.type);
        EXPECT_EQ(find_type(lower), info.type);
    }
    EXPECT_EQ(find_type("q4_k"), GGML_TYPE_Q4_K);
    for (const char* name : {"", "q4", "q4_k_m", "q8_1", "q8_k", "i32", "Q4_K "}) {
        EXPECT_EQ(find_type(name), std::nullopt) << name;
    }
    EXPECT_THROW(type_info(GGML_TYPE_I32), Error);
    EXPECT_THROW(row_bytes(GGML_TYPE_Q4_K, 255), Error);
}

TEST(IsLegal, NeedsWholeBlocks) {
    EXPECT_TRUE(is_legal(GGML_TYPE_Q4_K, 512, false, false));
    EXPECT_FALSE(is_legal(GGML_TYPE_Q4_K, 576, true, false));
    EXPECT_TRUE(is_legal(GGML_TYPE_Q4_0, 576, false, false));
    EXPECT_TRUE(is_legal(GGML_TYPE_NVFP4, 576, false, false));
    EXPECT_FALSE(is_legal(GGML_TYPE_Q1_0, 576, false, false));
    EXPECT_TRUE(is_legal(GGML_TYPE_BF16, 7, false, false));
    EXPECT_FALSE(is_legal(GGML_TYPE_Q8_0, 0, false, false));
    EXPECT_FALSE(is_legal(GGML_TYPE_F32, 512, true, false));
    EXPECT_FALSE(is_legal(GGML_TYPE_I32, 512, true, false));
}

TEST(IsLegal, WithoutAnImatrixFollowsLlamaQuantizeAndGgml) {
    const std::set<ggml_type> refused = {GGML_TYPE_IQ1_S,  GGML_TYPE_IQ1_M, GGML_TYPE_IQ2_XXS,
                                         GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS};
    for (const TypeInfo& info : all_types()) {
        if (!info.candidate) continue;
        SCOPED_TRACE(std::string(info.name));
        EXPECT_TRUE(is_legal(info.type, 512, true, false));
        EXPECT_EQ(is_legal(info.type, 512, false, false), !refused.contains(info.type));
        EXPECT_EQ(is_legal(info.type, 512, false, true),
                  !ggml_quantize_requires_imatrix(info.type));
    }
    EXPECT_TRUE(is_embedding_or_head("output.weight"));
    EXPECT_TRUE(is_embedding_or_head("token_embd.weight"));
    EXPECT_FALSE(is_embedding_or_head("blk.0.attn_output.weight"));
}

}  // namespace
}  // namespace voodoo::quant
