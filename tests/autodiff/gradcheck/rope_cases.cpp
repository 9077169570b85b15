// Gradient-check cases of ROPE in all modes.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

struct RopeForm {
    const char* name;
    int mode;
    int n_dims;
    float ext_factor;
    float attn_factor;
    bool factors;
    int offset;
};

ggml_tensor* rotate(Builder& b, const RopeForm& f, bool back) {
    constexpr int64_t kHeadDim = 12;
    constexpr int64_t kTokens = 5;
    ggml_tensor* x = b.input({kHeadDim, 2, kTokens, 1});
    const bool multi = (f.mode & GGML_ROPE_TYPE_MROPE) != 0;
    // far positions, so that every frequency turns by a visible angle
    ggml_tensor* positions =
        b.indices_i32({kTokens * (multi ? 4 : 1), 1, 1, 1}, [](int64_t i) { return 3 + 17 * i; });
    ggml_tensor* factors = nullptr;
    if (f.factors) {
        factors = b.constant({kHeadDim / 2, 1, 1, 1},
                             [](int64_t i) { return 1.0F + 0.4F * static_cast<float>(i); });
    }
    ggml_tensor* y = nullptr;
    if (multi) {
        int sections[4] = {2, 2, 1, 1};
        auto* make = back ? ggml_rope_multi_back : ggml_rope_multi;
        y = make(b.ctx(), x, positions, factors, f.n_dims, sections, f.mode, 64, 10000.0F, 0.8F,
                 f.ext_factor, f.attn_factor, 32.0F, 1.0F);
    } else {
        auto* make = back ? ggml_rope_ext_back : ggml_rope_ext;
        y = make(b.ctx(), x, positions, factors, f.n_dims, f.mode, 64, 10000.0F, 0.8F, f.ext_factor,
                 f.attn_factor, 32.0F, 1.0F);
    }
    return f.offset != 0 ? ggml_rope_set_offset(y, f.offset) : y;
}

}  // namespace

std::vector<Case> rope_cases() {
    const RopeForm forms[] = {
        {"Normal", GGML_ROPE_TYPE_NORMAL, 12, 0.0F, 1.0F, false, 0},
        {"NormalPartial", GGML_ROPE_TYPE_NORMAL, 6, 0.0F, 1.0F, false, 0},
        {"Neox", GGML_ROPE_TYPE_NEOX, 12, 0.0F, 1.0F, false, 0},
        {"NeoxPartial", GGML_ROPE_TYPE_NEOX, 8, 0.0F, 1.0F, false, 0},
        {"NeoxPartialWithOffset", GGML_ROPE_TYPE_NEOX, 6, 0.0F, 1.0F, false, 4},
        {"NormalWithFrequencyFactors", GGML_ROPE_TYPE_NORMAL, 12, 0.0F, 1.0F, true, 0},
        {"NeoxYarnWithMagnitude", GGML_ROPE_TYPE_NEOX, 12, 1.0F, 1.3F, true, 0},
        {"MultiSection", GGML_ROPE_TYPE_MROPE, 12, 0.0F, 1.0F, false, 0},
        {"MultiSectionInterleaved", GGML_ROPE_TYPE_IMROPE, 12, 0.5F, 0.7F, false, 0},
        {"Vision", GGML_ROPE_TYPE_VISION, 6, 0.0F, 1.0F, false, 0},
    };
    std::vector<Case> cases;
    for (const RopeForm& form : forms) {
        cases.push_back({"ROPE", form.name, [form](Builder& b) { return rotate(b, form, false); },
                         Tolerance::linear});
    }
    cases.push_back(
        {"ROPE", "OnAWindowOfFusedHeads",
         [](Builder& b) {
             ggml_tensor* fused = b.input({24, 5, 1, 1});
             ggml_tensor* heads = ggml_view_3d(b.ctx(), fused, 8, 2, 5, 8 * sizeof(float),
                                               fused->nb[1], 8 * sizeof(float));
             ggml_tensor* positions = b.indices_i32({5, 1, 1, 1}, [](int64_t i) { return 7 * i; });
             return ggml_rope(b.ctx(), heads, positions, 8, GGML_ROPE_TYPE_NEOX);
         },
         Tolerance::linear});
    cases.push_back({"ROPE_BACK", "Neox",
                     [form = forms[2]](Builder& b) { return rotate(b, form, true); },
                     Tolerance::linear});
    cases.push_back({"ROPE_BACK", "MultiSectionInterleaved",
                     [form = forms[8]](Builder& b) { return rotate(b, form, true); },
                     Tolerance::linear});
    return cases;
}

}  // namespace voodoo::gradcheck
