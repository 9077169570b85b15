// Gradient-check cases of the recurrent ops. Gates and keys lie in the ranges that keep a
// recurrence stable; the objective takes the outputs and the final states, which ggml returns in
// one tensor.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

struct DeltaNetShape {
    int64_t size, q_heads, k_heads, v_heads, tokens, sequences;
    bool gate_per_channel;
};

ggml_tensor* delta_net(Builder& b, const DeltaNetShape& s) {
    ggml_tensor* q = b.input({s.size, s.q_heads, s.tokens, s.sequences});
    ggml_tensor* k = b.input_between({s.size, s.k_heads, s.tokens, s.sequences}, -0.7, 0.7);
    ggml_tensor* v = b.input({s.size, s.v_heads, s.tokens, s.sequences});
    ggml_tensor* g = b.input_between(
        {s.gate_per_channel ? s.size : 1, s.v_heads, s.tokens, s.sequences}, -1.5, -0.05);
    ggml_tensor* beta = b.input_between({1, s.v_heads, s.tokens, s.sequences}, 0.1, 0.9);
    ggml_tensor* state = b.input({s.size, s.size, s.v_heads, s.sequences});
    return ggml_gated_delta_net(b.ctx(), q, k, v, g, beta, state, 1);
}

/// Queries, keys and values cut from one tensor, as models that convolve them together do.
ggml_tensor* fused_delta_net(Builder& b) {
    ggml_tensor* fused = b.input_between({24, 5, 2, 1}, -0.7, 0.7);
    ggml_tensor* q = b.window(fused, {4, 1, 5, 2}, {1, 4, 24, 120}, 0);
    ggml_tensor* k = b.window(fused, {4, 1, 5, 2}, {1, 4, 24, 120}, 4);
    ggml_tensor* v = b.window(fused, {4, 2, 5, 2}, {1, 4, 24, 120}, 8);
    ggml_tensor* g = b.input_between({1, 2, 5, 2}, -1.5, -0.05);
    ggml_tensor* beta = b.input_between({1, 2, 5, 2}, 0.1, 0.9);
    ggml_tensor* state = b.constant({4, 4, 2, 2}, [](int64_t) { return 0.0F; });
    ggml_tensor* out = ggml_gated_delta_net(b.ctx(), q, k, v, g, beta, state, 1);
    return ggml_cont(b.ctx(), b.window(out, {4, 2, 5, 2}, {1, 4, 8, 40}, 0));
}

struct ScanShape {
    int64_t state, dim, heads, groups, tokens, sequences;
    bool one_decay;
};

ggml_tensor* scan(Builder& b, const ScanShape& s) {
    // One state more than sequences: the indices choose.
    ggml_tensor* state = b.constant({s.state, s.dim, s.heads, s.sequences + 1},
                                    [](int64_t i) { return 0.3F * static_cast<float>(i % 7 - 3); });
    ggml_tensor* x = b.input({s.dim, s.heads, s.tokens, s.sequences});
    ggml_tensor* dt = b.input({s.heads, s.tokens, s.sequences, 1});
    ggml_tensor* a = b.input_between({s.one_decay ? 1 : s.state, s.heads, 1, 1}, -1.5, -0.1);
    ggml_tensor* bs = b.input({s.state, s.groups, s.tokens, s.sequences});
    ggml_tensor* cs = b.input({s.state, s.groups, s.tokens, s.sequences});
    ggml_tensor* ids =
        b.indices_i32({s.sequences, 1, 1, 1}, [&](int64_t i) { return s.sequences - i; });
    return ggml_ssm_scan(b.ctx(), state, x, dt, a, bs, cs, ids, 1);
}

/// x, B and C cut from one tensor, as Mamba 2 does.
ggml_tensor* fused_scan(Builder& b) {
    ggml_tensor* fused = b.input({14, 6, 2, 1});
    ggml_tensor* x = b.window(fused, {3, 2, 6, 2}, {1, 3, 14, 84}, 0);
    ggml_tensor* bs = b.window(fused, {4, 1, 6, 2}, {1, 4, 14, 84}, 6);
    ggml_tensor* cs = b.window(fused, {4, 1, 6, 2}, {1, 4, 14, 84}, 10);
    ggml_tensor* state = b.constant({4, 3, 2, 2}, [](int64_t) { return 0.0F; });
    ggml_tensor* dt = b.input({2, 6, 2, 1});
    ggml_tensor* a = b.input_between({1, 2, 1, 1}, -1.5, -0.1);
    ggml_tensor* ids = b.indices_i32({2, 1, 1, 1}, [](int64_t i) { return i; });
    ggml_tensor* out = ggml_ssm_scan(b.ctx(), state, x, dt, a, bs, cs, ids, 1);
    return ggml_cont(b.ctx(), b.window(out, {3, 2, 6, 2}, {1, 3, 6, 36}, 0));
}

Case short_convolution(const char* name, int64_t taps, int64_t channels, int64_t tokens,
                       int64_t sequences) {
    return {"SSM_CONV", name,
            [=](Builder& b) {
                ggml_tensor* x = b.input({tokens + taps - 1, channels, sequences, 1});
                return ggml_ssm_conv(b.ctx(), x, b.input({taps, channels, 1, 1}));
            },
            Tolerance::linear};
}

/// k, v, r (or q) of any size, the decay between 0 and 1.
struct WkvInputs {
    ggml_tensor *k, *v, *r, *w, *state;
};

WkvInputs wkv_inputs(Builder& b, int64_t size, int64_t heads, int64_t tokens, int64_t sequences) {
    const Shape ne = {size, heads, tokens * sequences, 1};
    WkvInputs in{};
    in.k = b.input(ne);
    in.v = b.input(ne);
    in.r = b.input(ne);
    in.w = b.input_between(ne, 0.2, 0.95);
    in.state = b.input({size * size * heads, sequences, 1, 1});
    return in;
}

ggml_tensor* wkv6(Builder& b, int64_t size, int64_t heads, int64_t tokens, int64_t sequences) {
    const WkvInputs in = wkv_inputs(b, size, heads, tokens, sequences);
    ggml_tensor* bonus = b.input({size, heads, 1, 1});
    return ggml_rwkv_wkv6(b.ctx(), in.k, in.v, in.r, bonus, in.w, in.state);
}

ggml_tensor* linear_attention(Builder& b, int64_t size, int64_t heads, int64_t tokens,
                              int64_t sequences) {
    const WkvInputs in = wkv_inputs(b, size, heads, tokens, sequences);
    return ggml_gated_linear_attn(b.ctx(), in.k, in.v, in.r, in.w, in.state, 0.7F);
}

ggml_tensor* wkv7(Builder& b, int64_t heads, int64_t tokens, int64_t sequences) {
    constexpr int64_t kSize = 64;  // ggml's kernel wants whole vectors
    const WkvInputs in = wkv_inputs(b, kSize, heads, tokens, sequences);
    const Shape ne = {kSize, heads, tokens * sequences, 1};
    ggml_tensor* a = b.input_between(ne, -0.15, 0.15);
    ggml_tensor* bb = b.input_between(ne, -0.15, 0.15);
    return ggml_rwkv_wkv7(b.ctx(), in.r, in.w, in.k, in.v, a, bb, in.state);
}

Case recurrent(const char* rule, const char* name, std::function<ggml_tensor*(Builder&)> build) {
    Case c{rule, name, std::move(build), Tolerance::smooth};
    c.scales = {0.3, 1.0};
    return c;
}

Case directional(Case c) {
    c.directional = true;
    return c;
}

void add_rearrangements(std::vector<Case>& cases) {
    cases.push_back({"CUMSUM", "Plain",
                     [](Builder& b) {
                         return ggml_cumsum(b.ctx(), b.input({7, 3, 2, 2}));
                     },
                     Tolerance::linear});
    cases.push_back({"DIAG", "Batched",
                     [](Builder& b) {
                         return ggml_diag(b.ctx(), b.input({5, 1, 2, 3}));
                     },
                     Tolerance::linear});
    cases.push_back({"ROLL", "AllDims",
                     [](Builder& b) {
                         return ggml_roll(b.ctx(), b.input({5, 4, 3, 2}), 2, -1, 1, 1);
                     },
                     Tolerance::linear});
    cases.push_back({"SET", "WindowOfRows",
                     [](Builder& b) {
                         ggml_tensor* base = b.input({6, 5, 2, 1});
                         ggml_tensor* x = b.input({4, 3, 2, 1});
                         return ggml_set(b.ctx(), base, x, base->nb[1], base->nb[2], base->nb[3],
                                         base->nb[1] + sizeof(float));
                     },
                     Tolerance::linear});
    cases.push_back(
        {"SOLVE_TRI", "Batched",
         [](Builder& b) {
             // Away from a singular matrix: the diagonal is at least 1.
             ggml_tensor* below =
                 ggml_tri(b.ctx(), b.input_between({5, 5, 2, 2}, -0.5, 0.5), GGML_TRI_TYPE_LOWER);
             ggml_tensor* diagonal = ggml_diag(b.ctx(), b.input_between({5, 1, 2, 2}, 1.0, 2.0));
             ggml_tensor* a = ggml_add(b.ctx(), below, diagonal);
             return ggml_solve_tri(b.ctx(), a, b.input({3, 5, 2, 2}), true, true, false);
         },
         Tolerance::smooth});
}

}  // namespace

std::vector<Case> recurrent_cases() {
    std::vector<Case> cases = {
        short_convolution("FourTaps", 4, 5, 9, 2),
        short_convolution("MoreChannelsThanABlock", 3, 19, 4, 1),
        short_convolution("LongerThanAVector", 4, 2, 45, 1),
        short_convolution("OneTokenOneChannel", 4, 1, 1, 3),
        short_convolution("OneTap", 1, 3, 5, 1),
    };
    const std::pair<const char*, DeltaNetShape> delta_nets[] = {
        {"OneGate", {4, 2, 2, 2, 7, 1, false}},
        {"GatePerChannel", {4, 2, 2, 2, 7, 1, true}},
        {"SharedKeysTwoSequences", {3, 2, 2, 4, 5, 2, false}},
        {"QueriesAndKeysGroupedApart", {3, 2, 4, 4, 4, 1, true}},
        {"OneQueryHead", {3, 1, 3, 3, 4, 2, false}},
        {"OneToken", {5, 1, 1, 2, 1, 2, false}},
        {"SizeOne", {1, 1, 1, 2, 6, 1, false}},
        {"OneHead", {6, 1, 1, 1, 10, 1, false}},
    };
    for (const auto& [name, shape] : delta_nets) {
        cases.push_back(recurrent("GATED_DELTA_NET", name,
                                  [shape = shape](Builder& b) { return delta_net(b, shape); }));
    }
    cases.push_back(recurrent("GATED_DELTA_NET", "WindowsOfOneTensor", fused_delta_net));
    cases.push_back(directional(recurrent("GATED_DELTA_NET", "WiderThanAVector", [](Builder& b) {
        return delta_net(b, {19, 1, 1, 2, 11, 1, true});
    })));
    const std::pair<const char*, ScanShape> scans[] = {
        {"Mamba1", {4, 1, 6, 1, 7, 2, false}},
        {"Mamba1MoreHeadsThanABlock", {2, 1, 70, 1, 3, 1, false}},
        {"Mamba1Channels", {3, 2, 4, 2, 5, 1, false}},
        {"Mamba2", {4, 3, 4, 2, 7, 2, true}},
        {"Mamba2OneGroup", {5, 2, 6, 1, 5, 1, true}},
        {"Mamba2OneToken", {3, 2, 2, 1, 1, 3, true}},
        {"Mamba2StateOfOne", {1, 4, 2, 2, 6, 1, true}},
        {"Mamba1OneHead", {3, 1, 1, 1, 10, 1, false}},
    };
    for (const auto& [name, shape] : scans) {
        cases.push_back(
            recurrent("SSM_SCAN", name, [shape = shape](Builder& b) { return scan(b, shape); }));
    }
    cases.push_back(recurrent("SSM_SCAN", "WindowsOfOneTensor", fused_scan));
    cases.push_back(directional(recurrent("SSM_SCAN", "Mamba2WiderThanAVector", [](Builder& b) {
        return scan(b, {21, 5, 3, 1, 11, 2, true});
    })));
    cases.push_back(directional(recurrent("SSM_SCAN", "Mamba1WiderThanAVector", [](Builder& b) {
        return scan(b, {18, 1, 40, 1, 11, 2, false});
    })));
    cases.push_back(
        recurrent("RWKV_WKV6", "Plain", [](Builder& b) { return wkv6(b, 4, 2, 7, 1); }));
    cases.push_back(
        recurrent("RWKV_WKV6", "TwoSequences", [](Builder& b) { return wkv6(b, 3, 3, 4, 2); }));
    cases.push_back(directional(recurrent("RWKV_WKV6", "WiderThanAVector",
                                          [](Builder& b) { return wkv6(b, 18, 2, 6, 2); })));
    cases.push_back(recurrent("GATED_LINEAR_ATTN", "Plain",
                              [](Builder& b) { return linear_attention(b, 4, 2, 7, 1); }));
    cases.push_back(recurrent("GATED_LINEAR_ATTN", "TwoSequences",
                              [](Builder& b) { return linear_attention(b, 3, 3, 4, 2); }));
    cases.push_back(
        directional(recurrent("RWKV_WKV7", "Plain", [](Builder& b) { return wkv7(b, 2, 6, 1); })));
    cases.push_back(directional(
        recurrent("RWKV_WKV7", "TwoSequences", [](Builder& b) { return wkv7(b, 1, 3, 2); })));
    add_rearrangements(cases);
    return cases;
}

}  // namespace voodoo::gradcheck
