// Gradient-check cases of ops that move elements.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

Case windowed(const char* name, const Shape& root, const Shape& ne, const Shape& stride,
              int64_t offset) {
    return {
        "VIEW", name,
        [=](Builder& b) { return ggml_cont(b.ctx(), b.window(b.input(root), ne, stride, offset)); },
        Tolerance::linear};
}

/// Q, K, V cut from one fused tensor and used apart, besides a use of the whole.
ggml_tensor* fused_qkv(Builder& b) {
    ggml_tensor* fused = b.input({12, 5, 1, 1});
    ggml_tensor* q = ggml_cont(b.ctx(), b.window(fused, {4, 5, 1, 1}, {1, 12, 60, 60}, 0));
    ggml_tensor* k = ggml_cont(b.ctx(), b.window(fused, {4, 5, 1, 1}, {1, 12, 60, 60}, 4));
    ggml_tensor* v = ggml_cont(b.ctx(), b.window(fused, {4, 5, 1, 1}, {1, 12, 60, 60}, 8));
    ggml_tensor* mixed = ggml_mul(b.ctx(), ggml_mul(b.ctx(), q, k), v);
    return ggml_add(b.ctx(), mixed, ggml_sum_rows(b.ctx(), ggml_sqr(b.ctx(), fused)));
}

/// More windows of one root than one scatter node takes, some of them overlapping each other.
ggml_tensor* many_windows(Builder& b) {
    ggml_tensor* root = b.input({30, 3, 1, 1});
    ggml_tensor* sum = nullptr;
    for (int64_t i = 0; i < 12; ++i) {
        ggml_tensor* part =
            ggml_cont(b.ctx(), b.window(root, {4, 3, 1, 1}, {1, 30, 90, 90}, 2 * i));
        part = ggml_scale(b.ctx(), part, 0.3F + 0.1F * static_cast<float>(i));
        sum = sum == nullptr ? part : ggml_add(b.ctx(), sum, part);
    }
    return sum;
}

}  // namespace

std::vector<Case> view_cases() {
    std::vector<Case> cases = {
        windowed("MiddleOfEveryDim", {7, 5, 4, 3}, {3, 2, 2, 2}, {1, 7, 35, 140}, 2 + 7 + 35 + 140),
        windowed("WholeRoot", {4, 3, 2, 1}, {4, 3, 2, 1}, {1, 4, 12, 24}, 0),
        windowed("WholeRootPermuted", {4, 3, 5, 2}, {5, 2, 4, 3}, {12, 60, 1, 4}, 0),
        windowed("WholeRootReshaped", {12, 5, 1, 1}, {3, 4, 5, 1}, {1, 3, 12, 60}, 0),
        windowed("TransposedWindow", {8, 6, 1, 1}, {4, 5, 1, 1}, {8, 1, 48, 48}, 9),
        windowed("HeadsOfFusedRows", {24, 5, 1, 1}, {4, 5, 2, 1}, {1, 24, 4, 120}, 8),
        windowed("EveryOtherElement", {9, 4, 1, 1}, {4, 4, 1, 1}, {2, 9, 36, 36}, 1),
        windowed("EveryOtherInAllDims", {6, 4, 4, 4}, {3, 2, 2, 2}, {2, 12, 48, 192}, 1),
        windowed("FourPermutedDimsWithGaps", {6, 4, 4, 4}, {2, 3, 2, 2}, {48, 2, 192, 12}, 0),
        windowed("SizeOneDims", {6, 5, 1, 1}, {1, 1, 4, 1}, {1, 6, 6, 30}, 3),
        windowed("OneElement", {6, 5, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, 13),
        windowed("FlatSlice", {6, 5, 1, 1}, {17, 1, 1, 1}, {1, 17, 17, 17}, 4),
        {"VIEW", "FusedQkvBesideAUseOfTheWhole", fused_qkv, Tolerance::smooth},
        {"VIEW", "MoreWindowsThanOneScatterTakes", many_windows, Tolerance::linear},
        {"VIEW", "AsTheOutputItself",
         [](Builder& b) {
             return b.window(ggml_scale(b.ctx(), b.input({6, 5, 1, 1}), 1.5F), {5, 3, 1, 1},
                             {6, 1, 30, 30}, 2);
         },
         Tolerance::linear},
        {"VIEW", "OfAReshapedWindow",
         [](Builder& b) {
             ggml_tensor* rows =
                 ggml_view_2d(b.ctx(), b.input({6, 5, 1, 1}), 6, 3, 6 * sizeof(float), 24);
             ggml_tensor* flat = ggml_reshape_2d(b.ctx(), rows, 9, 2);
             return ggml_cont(b.ctx(),
                              ggml_view_2d(b.ctx(), flat, 4, 2, flat->nb[1], 3 * sizeof(float)));
         },
         Tolerance::linear},
        {"RESHAPE", "Plain",
         [](Builder& b) {
             return ggml_scale(b.ctx(), ggml_reshape_3d(b.ctx(), b.input({6, 5, 1, 1}), 2, 5, 3),
                               1.5F);
         },
         Tolerance::linear},
        {"TRANSPOSE", "Plain",
         [](Builder& b) {
             return ggml_transpose(b.ctx(), b.input({6, 5, 2, 1}));
         },
         Tolerance::linear},
        {"TRANSPOSE", "LargerThanATile",
         [](Builder& b) {
             return ggml_transpose(b.ctx(), b.input({37, 21, 1, 1}));
         },
         Tolerance::linear},
        {"CONT", "OfATranspose",
         [](Builder& b) {
             return ggml_cont(b.ctx(), ggml_transpose(b.ctx(), b.input({6, 5, 2, 1})));
         },
         Tolerance::linear},
        {"CONT", "WithAnotherShape",
         [](Builder& b) {
             return ggml_cont_2d(b.ctx(), ggml_permute(b.ctx(), b.input({3, 4, 5, 1}), 0, 2, 1, 3),
                                 15, 4);
         },
         Tolerance::linear},
        {"DUP", "Plain",
         [](Builder& b) {
             return ggml_dup(b.ctx(), b.input({6, 5, 2, 1}));
         },
         Tolerance::linear},
        {"CPY", "IntoAnotherLayout",
         [](Builder& b) {
             ggml_tensor* x = b.input({6, 5, 1, 1});
             return ggml_cpy(b.ctx(), x, b.constant({10, 3, 1, 1}, [](int64_t) { return 9.0F; }));
         },
         Tolerance::linear},
        {"CPY", "CastThatRounds",
         [](Builder& b) {
             ggml_tensor* x = b.input({6, 5, 1, 1});
             return b.exact() ? ggml_dup(b.ctx(), x) : ggml_cast(b.ctx(), x, GGML_TYPE_F16);
         },
         Tolerance::table, 2e-3},
        {"PAD", "AtTheEnd",
         [](Builder& b) {
             return ggml_pad(b.ctx(), b.input({4, 3, 2, 1}), 2, 1, 0, 1);
         },
         Tolerance::linear},
        {"PAD", "OnBothSides",
         [](Builder& b) {
             return ggml_pad_ext(b.ctx(), b.input({4, 3, 2, 1}), 1, 2, 0, 1, 2, 0, 1, 0);
         },
         Tolerance::linear},
        {"TRI", "Lower",
         [](Builder& b) {
             return ggml_tri(b.ctx(), b.input({5, 5, 2, 1}), GGML_TRI_TYPE_LOWER);
         },
         Tolerance::linear},
        {"TRI", "UpperWithDiagonal",
         [](Builder& b) {
             return ggml_tri(b.ctx(), b.input({5, 5, 2, 1}), GGML_TRI_TYPE_UPPER_DIAG);
         },
         Tolerance::linear},
    };
    const int axes[][4] = {{0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}, {1, 2, 0, 3}, {3, 1, 0, 2}};
    for (const auto& a : axes) {
        const std::string name = std::string("Axes") + std::to_string(a[0]) + std::to_string(a[1]) +
                                 std::to_string(a[2]) + std::to_string(a[3]);
        cases.push_back(
            {"PERMUTE", name,
             [a](Builder& b) {
                 return ggml_permute(b.ctx(), b.input({5, 4, 3, 2}), a[0], a[1], a[2], a[3]);
             },
             Tolerance::linear});
    }
    return cases;
}

}  // namespace voodoo::gradcheck
