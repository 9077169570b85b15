// Gradient-check cases of GET_ROWS and SET_ROWS.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

ggml_tensor* zero_base(Builder& b, const Shape& ne) {
    return b.constant(ne, [](int64_t) { return 0.0F; });
}

}  // namespace

std::vector<Case> row_cases() {
    return {
        {"GET_ROWS", "RowsReadTwiceAndNever",
         [](Builder& b) {
             ggml_tensor* table = b.input({6, 5, 1, 1});
             return ggml_get_rows(b.ctx(), table, b.indices_i32({4, 1, 1, 1}, [](int64_t i) {
                 return i == 3 ? 0 : 4 - 2 * i;
             }));
         },
         Tolerance::linear},
        {"GET_ROWS", "Batched",
         [](Builder& b) {
             ggml_tensor* table = b.input({4, 5, 2, 3});
             return ggml_get_rows(b.ctx(), table,
                                  b.indices_i32({3, 2, 3, 1}, [](int64_t i) { return i * 7 % 5; }));
         },
         Tolerance::linear},
        {"GET_ROWS", "QuantizedTable",
         [](Builder& b) {
             ggml_tensor* table = b.weight(GGML_TYPE_Q8_0, {32, 5, 1, 1});
             return ggml_get_rows(b.ctx(), table,
                                  b.indices_i32({3, 1, 1, 1}, [](int64_t i) { return 4 - i; }));
         },
         Tolerance::linear, 1e-6},
        {"SET_ROWS", "WideRows",
         [](Builder& b) {
             ggml_tensor* base = zero_base(b, {6, 8, 1, 1});
             ggml_tensor* rows = b.input({6, 3, 1, 1});
             return ggml_set_rows(b.ctx(), base, rows,
                                  b.indices_i64({3, 1, 1, 1}, [](int64_t i) { return 6 - 2 * i; }));
         },
         Tolerance::linear},
        {"SET_ROWS", "NarrowIndices",
         [](Builder& b) {
             ggml_tensor* base = zero_base(b, {6, 8, 1, 1});
             ggml_tensor* rows = b.input({6, 3, 1, 1});
             return ggml_set_rows(b.ctx(), base, rows,
                                  b.indices_i32({3, 1, 1, 1}, [](int64_t i) { return 7 - i; }));
         },
         Tolerance::linear},
        {"SET_ROWS", "RowsOfOneElement",
         [](Builder& b) {
             // how llama.cpp writes a transposed V cache: element j of token t goes to j n_kv + t
             ggml_tensor* base = zero_base(b, {1, 4 * 8, 1, 1});
             ggml_tensor* rows = ggml_reshape_2d(b.ctx(), b.input({4, 3, 1, 1}), 1, 12);
             return ggml_set_rows(b.ctx(), base, rows, b.indices_i64({12, 1, 1, 1}, [](int64_t i) {
                 return i % 4 * 8 + i / 4 + 2;
             }));
         },
         Tolerance::linear},
        {"SET_ROWS", "IndicesRepeatOverBatches",
         [](Builder& b) {
             ggml_tensor* base = zero_base(b, {3, 7, 4, 2});
             ggml_tensor* rows = b.input({3, 2, 4, 2});
             return ggml_set_rows(b.ctx(), base, rows,
                                  b.indices_i64({2, 2, 1, 1}, [](int64_t i) { return 5 - i; }));
         },
         Tolerance::linear},
        {"SET_ROWS", "BaseWantsAGradientToo",
         [](Builder& b) {
             // scaled first: SET_ROWS writes in place, so the leaf itself must not be its
             // destination
             ggml_tensor* base = ggml_scale(b.ctx(), b.input({5, 6, 1, 1}), 1.5F);
             ggml_tensor* rows = b.input({5, 2, 1, 1});
             return ggml_set_rows(b.ctx(), base, rows,
                                  b.indices_i64({2, 1, 1, 1}, [](int64_t i) { return 4 - 3 * i; }));
         },
         Tolerance::linear},
    };
}

}  // namespace voodoo::gradcheck
