// The backward walk, the audit, refusals and the tape's hooks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "autodiff/vjp.h"
#include "base/error.h"
#include "gradcheck/gradcheck.h"

namespace voodoo::autodiff {
namespace {

using gradcheck::Builder;
using gradcheck::Session;
using gradcheck::values_of;

/// A forward graph on the CPU whose gradients can be asked for.
class GraphFixture : public testing::Test {
protected:
    GraphFixture()
        : session_(2),
          b_(session_.leaf_context(), session_.node_context(), "backward_test", 1.0, false) {}

    ggml_context* ctx() { return session_.node_context(); }

    /// Two ops without a rule that keep the shape.
    ggml_tensor* pool(ggml_tensor* x) { return ggml_pool_1d(ctx(), x, GGML_OP_POOL_AVG, 1, 1, 0); }
    ggml_tensor* reflect(ggml_tensor* x) { return ggml_pad_reflect_1d(ctx(), x, 0, 0); }

    std::vector<ggml_tensor*> order(ggml_tensor* out) {
        ggml_cgraph* graph = ggml_new_graph(ctx());
        ggml_build_forward_expand(graph, out);
        return {ggml_graph_nodes(graph), ggml_graph_nodes(graph) + ggml_graph_n_nodes(graph)};
    }

    /// Gradients of `wanted` for the cotangent 1, 2, 3, ... at `out`.
    BackwardResult gradients(Tape& tape, ggml_tensor* out,
                             const std::vector<ggml_tensor*>& wanted) {
        cotangent_ =
            b_.constant(shape_of(out), [](int64_t i) { return static_cast<float>(i + 1); });
        const std::pair<ggml_tensor*, ggml_tensor*> seed{out, cotangent_};
        return backward(tape, order(out), {&seed, 1}, wanted);
    }

    std::vector<double> run(ggml_tensor* t) {
        session_.allocate_leaves(b_.leaves());
        session_.build({t});
        session_.compute();
        return values_of(t);
    }

    std::string error_of(Tape& tape, ggml_tensor* out, const std::vector<ggml_tensor*>& wanted) {
        try {
            gradients(tape, out, wanted);
        } catch (const Error& e) {
            EXPECT_EQ(e.kind(), ErrorKind::unsupported_op);
            return e.what();
        }
        return "";
    }

    Session session_;
    Builder b_;
    ggml_tensor* cotangent_ = nullptr;
};

using Backward = GraphFixture;

TEST_F(Backward, GivesGradientsOfInnerValuesAndOfWhatLiesBelowThem) {
    ggml_tensor* x = b_.input({3, 1, 1, 1});
    ggml_tensor* inner = ggml_scale(ctx(), x, 2.0F);
    ggml_tensor* out = ggml_scale(ctx(), inner, 5.0F);
    Tape tape(ctx());
    const BackwardResult result = gradients(tape, out, {x, inner});
    ASSERT_NE(result.find(inner), nullptr);
    ASSERT_NE(result.find(x), nullptr);
    ggml_tensor* both = ggml_concat(ctx(), result.find(inner), result.find(x), 0);
    EXPECT_EQ(run(both), (std::vector<double>{5, 10, 15, 10, 20, 30}));
}

TEST_F(Backward, LeavesOutValuesThatNoOutputDependsOn) {
    ggml_tensor* x = b_.input({3, 1, 1, 1});
    ggml_tensor* unused = b_.input({3, 1, 1, 1});
    Tape tape(ctx());
    const BackwardResult result = gradients(tape, ggml_sqr(ctx(), x), {x, unused});
    EXPECT_NE(result.find(x), nullptr);
    EXPECT_EQ(result.find(unused), nullptr);
}

TEST_F(Backward, AddsTheSeedsOfSeveralOutputs) {
    ggml_tensor* x = b_.input({2, 1, 1, 1});
    ggml_tensor* first = ggml_scale(ctx(), x, 3.0F);
    ggml_tensor* second = ggml_scale(ctx(), first, 10.0F);
    const auto one = [&] { return b_.constant({2, 1, 1, 1}, [](int64_t) { return 1.0F; }); };
    const std::pair<ggml_tensor*, ggml_tensor*> seeds[] = {
        {first, one()}, {second, one()}, {second, one()}};
    Tape tape(ctx());
    ggml_tensor* const wanted[] = {x};
    const BackwardResult result = backward(tape, order(second), seeds, wanted);
    EXPECT_EQ(run(result.find(x)), (std::vector<double>{63, 63}));
}

TEST_F(Backward, BuildsNothingForBranchesWithoutAWantedValue) {
    ggml_tensor* x = b_.input({4, 4, 1, 1});
    ggml_tensor* frozen = b_.input({4, 4, 1, 1});
    ggml_tensor* branch = ggml_soft_max(ctx(), ggml_mul_mat(ctx(), frozen, frozen));
    ggml_tensor* out = ggml_mul(ctx(), x, branch);
    Tape tape(ctx());
    const BackwardResult result = gradients(tape, out, {x});
    const std::vector<ggml_tensor*> nodes = order(result.find(x));
    EXPECT_TRUE(std::none_of(nodes.begin(), nodes.end(),
                             [](const ggml_tensor* n) { return n->op == GGML_OP_SOFT_MAX_BACK; }));
    EXPECT_TRUE(tape.custom_nodes().empty());
}

TEST_F(Backward, GathersAllWindowsOfAFusedTensorInOneNode) {
    ggml_tensor* fused = ggml_scale(ctx(), b_.input({9, 4, 1, 1}), 1.5F);
    ggml_tensor* sum = nullptr;
    for (int64_t i = 0; i < 3; ++i) {
        ggml_tensor* part = ggml_cont(ctx(), b_.window(fused, {3, 4, 1, 1}, {1, 9, 36, 36}, 3 * i));
        sum = sum == nullptr ? part : ggml_mul(ctx(), sum, part);
    }
    Tape tape(ctx());
    const BackwardResult result = gradients(tape, sum, {b_.inputs()[0]});
    const std::vector<ggml_tensor*> nodes = order(result.find(b_.inputs()[0]));
    EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(),
                            [](const ggml_tensor* n) { return n->op == GGML_OP_CUSTOM; }),
              1);
    EXPECT_TRUE(std::none_of(nodes.begin(), nodes.end(),
                             [](const ggml_tensor* n) { return n->op == GGML_OP_ADD; }));
    EXPECT_EQ(tape.custom_nodes().size(), 1U);
}

TEST_F(Backward, UsesOnlyPlainGgmlOpsForATransformerBlockWhenCpuNodesAreOff) {
    ggml_tensor* x = b_.input({8, 5, 1, 1});
    ggml_tensor* h = ggml_mul(ctx(), ggml_rms_norm(ctx(), x, 1e-5F), b_.input({8, 1, 1, 1}));
    ggml_tensor* q =
        ggml_reshape_3d(ctx(), ggml_mul_mat(ctx(), b_.input({8, 8, 1, 1}), h), 4, 2, 5);
    ggml_tensor* positions = b_.indices_i32({5, 1, 1, 1}, [](int64_t i) { return i; });
    q = ggml_permute(ctx(), ggml_rope(ctx(), q, positions, 4, GGML_ROPE_TYPE_NEOX), 0, 2, 1, 3);
    ggml_tensor* p = ggml_soft_max_ext(ctx(), ggml_mul_mat(ctx(), q, q), nullptr, 0.5F, 0.0F);
    ggml_tensor* up = ggml_mul_mat(ctx(), b_.input({5, 6, 1, 1}), p);
    ggml_tensor* out = ggml_swiglu_split(ctx(), up, up);
    TapeOptions options;
    options.cpu_custom_ops = false;
    Tape tape(ctx(), options);
    const BackwardResult result = gradients(tape, out, b_.inputs());
    EXPECT_EQ(result.grads.size(), b_.inputs().size());
    EXPECT_TRUE(tape.custom_nodes().empty());
}

TEST_F(Backward, StopsAtIndicesAndPiecewiseConstantFunctions) {
    ggml_tensor* x = b_.input({5, 3, 1, 1});
    const std::vector<ggml_tensor*> stops = {
        ggml_sgn(ctx(), x),   ggml_step(ctx(), x),  ggml_floor(ctx(), x),     ggml_ceil(ctx(), x),
        ggml_round(ctx(), x), ggml_trunc(ctx(), x), ggml_fill(ctx(), x, 2.0F)};
    for (ggml_tensor* stop : stops) {
        ggml_tensor* out = ggml_mul(ctx(), stop, ggml_scale(ctx(), stop, 0.5F));
        Tape tape(ctx());
        EXPECT_EQ(gradients(tape, out, {x}).find(x), nullptr) << ggml_op_desc(stop);
    }
    ggml_tensor* picked = ggml_get_rows(ctx(), x, ggml_argmax(ctx(), x));
    Tape tape(ctx());
    EXPECT_NE(gradients(tape, picked, {x}).find(x), nullptr) << "the table still gets its gradient";
}

TEST_F(Backward, NamesEveryOpWithoutARuleBeforeBuildingAnything) {
    ggml_tensor* x = b_.input({4, 3, 1, 1});
    ggml_tensor* y = pool(pool(x));
    ggml_tensor* out = ggml_add(ctx(), reflect(y), x);
    Tape tape(ctx());
    const std::string error = error_of(tape, out, {x});
    EXPECT_NE(error.find("POOL_1D x2"), std::string::npos) << error;
    EXPECT_NE(error.find("PAD_REFLECT_1D x1"), std::string::npos) << error;
}

TEST_F(Backward, RefusesAGradientOfTheMaskByName) {
    ggml_tensor* x = b_.input({4, 4, 1, 1});
    ggml_tensor* mask = b_.input({4, 4, 1, 1});
    Tape tape(ctx());
    const std::string error = error_of(tape, ggml_soft_max_ext(ctx(), x, mask, 1.0F, 0.0F), {mask});
    EXPECT_NE(error.find("gradient of the mask"), std::string::npos) << error;
}

TEST_F(Backward, RefusesWindowsThatOverlapThemselvesByName) {
    ggml_tensor* x = b_.input({8, 4, 1, 1});
    Tape tape(ctx());
    const Shape strides[] = {{1, 2, 32, 32}, {0, 8, 32, 32}, {1, 3, 32, 32}};
    for (const Shape& stride : strides) {
        ggml_tensor* out = ggml_cont(ctx(), b_.window(x, {4, 3, 1, 1}, stride, 0));
        const std::string error = error_of(tape, out, {x});
        EXPECT_NE(error.find("overlap"), std::string::npos) << error;
    }
}

TEST_F(Backward, RefusesOtherFormsItCanNotDifferentiate) {
    ggml_tensor* x = b_.input({4, 3, 6, 1});
    Tape tape(ctx());
    EXPECT_NE(error_of(tape, ggml_pad_ext_circular(ctx(), x, 1, 0, 0, 0, 0, 0, 0, 0), {x})
                  .find("circular"),
              std::string::npos);
    EXPECT_NE(error_of(tape, ggml_group_norm(ctx(), b_.input({4, 3, 5, 1}), 2, 1e-5F), b_.inputs())
                  .find("equal groups"),
              std::string::npos);
    ggml_tensor* turned = ggml_permute(ctx(), x, 1, 0, 2, 3);
    ggml_tensor* of_turned = ggml_view_1d(ctx(), turned, 5, 0);
    EXPECT_NE(error_of(tape, ggml_cont(ctx(), of_turned), {x}).find("non-contiguous"),
              std::string::npos);
    ggml_tensor* positions = b_.indices_i32({6, 1, 1, 1}, [](int64_t i) { return i; });
    ggml_tensor* factors = b_.input({2, 1, 1, 1});
    ggml_tensor* rotated =
        ggml_rope_ext(ctx(), x, positions, factors, 4, 2, 0, 1e4F, 1.0F, 0.0F, 1.0F, 32.0F, 1.0F);
    EXPECT_NE(error_of(tape, rotated, {factors}).find("frequency factors"), std::string::npos);
}

TEST_F(Backward, RefusesRollbackSnapshotsAndTheInitialStatesOfAScan) {
    Tape tape(ctx());
    ggml_tensor* q = b_.input({4, 2, 5, 1});
    ggml_tensor* gate = b_.input({1, 2, 5, 1});
    ggml_tensor* state = b_.input({4, 4, 2, 1});
    EXPECT_NE(error_of(tape, ggml_gated_delta_net(ctx(), q, q, q, gate, gate, state, 2), {q})
                  .find("rollback snapshots"),
              std::string::npos);
    ggml_tensor* one = b_.input({4, 2, 5, 1});
    ggml_tensor* two = b_.input({4, 2, 5, 2});
    ggml_tensor* gates = b_.input({1, 2, 5, 2});
    ggml_tensor* states = b_.input({4, 4, 2, 2});
    EXPECT_NE(
        error_of(tape, ggml_gated_delta_net(ctx(), one, two, two, gates, gates, states, 1), {one})
            .find("shared by sequences"),
        std::string::npos);

    ggml_tensor* dt = b_.input({2, 5, 1, 1});
    ggml_tensor* decay = b_.input({1, 2, 1, 1});
    ggml_tensor* bc = b_.input({4, 1, 5, 1});
    ggml_tensor* ids = b_.indices_i32({1, 1, 1, 1}, [](int64_t) { return 0; });
    const auto scan = [&](int64_t n_snapshots) {
        return ggml_ssm_scan(ctx(), state, q, dt, decay, bc, bc, ids, n_snapshots);
    };
    EXPECT_NE(error_of(tape, scan(2), {q}).find("rollback snapshots"), std::string::npos);
    EXPECT_NE(error_of(tape, scan(1), {state}).find("initial states"), std::string::npos);
}

using Audit = GraphFixture;

TEST_F(Audit, CountsWhatBackwardWouldRefuseAndNothingElse) {
    ggml_tensor* weight = b_.input({4, 4, 1, 1});
    ggml_tensor* data = b_.input({4, 3, 1, 1});
    ggml_tensor* before = pool(data);  // no weight above it
    ggml_tensor* y = ggml_mul_mat(ctx(), weight, before);
    ggml_tensor* out = reflect(pool(reflect(y)));
    const std::vector<ggml_tensor*> nodes = order(out);
    const std::vector<const ggml_tensor*> view(nodes.begin(), nodes.end());
    const std::vector<Unsupported> list =
        audit(view, [&](const ggml_tensor* t) { return t == weight; });
    ASSERT_EQ(list.size(), 2U);
    EXPECT_EQ(list[0].op, "PAD_REFLECT_1D");
    EXPECT_EQ(list[0].count, 2);
    EXPECT_EQ(list[1].op, "POOL_1D");
    EXPECT_EQ(list[1].count, 1);
    EXPECT_TRUE(audit(view, [](const ggml_tensor*) { return false; }).empty());
}

TEST_F(Audit, PassesOverWhatOnlySelectsRows) {
    ggml_tensor* weight = b_.input({4, 4, 1, 1});
    ggml_tensor* data = b_.input({4, 3, 1, 1});
    ggml_tensor* scores = pool(ggml_mul_mat(ctx(), weight, data));
    ggml_tensor* chosen = ggml_top_k(ctx(), scores, 2);
    ggml_tensor* picked = ggml_get_rows(ctx(), weight, ggml_view_1d(ctx(), chosen, 2, 0));
    const auto unsupported = [&](ggml_tensor* out) {
        const std::vector<ggml_tensor*> nodes = order(out);
        return audit(std::vector<const ggml_tensor*>(nodes.begin(), nodes.end()),
                     [&](const ggml_tensor* t) { return t == weight; });
    };
    EXPECT_TRUE(unsupported(picked).empty());
    ggml_tensor* also_used = ggml_add(ctx(), picked, ggml_view_2d(ctx(), scores, 4, 2, 16, 0));
    ASSERT_EQ(unsupported(also_used).size(), 1U);
    EXPECT_EQ(unsupported(also_used)[0].op, "POOL_1D");
}

using TapeHooksTest = GraphFixture;

TEST_F(TapeHooksTest, MulMatTakesTheTransposedWeightThatTheCallerOffers) {
    ggml_tensor* w = b_.input({4, 3, 1, 1});
    ggml_tensor* x = b_.input({4, 2, 1, 1});
    ggml_tensor* offered = b_.constant({3, 4, 1, 1}, [](int64_t) { return 0.5F; });
    TapeHooks hooks;
    hooks.transposed_weight = [&](const ggml_tensor* t) { return t == w ? offered : nullptr; };
    Tape tape(ctx(), {}, hooks);
    const BackwardResult result = gradients(tape, ggml_mul_mat(ctx(), w, x), {x});
    // cotangent rows (1 2 3), (4 5 6) against a matrix of 0.5
    EXPECT_EQ(run(result.find(x)), (std::vector<double>{3, 3, 3, 3, 7.5, 7.5, 7.5, 7.5}));
}

TEST_F(TapeHooksTest, RefusesAnOfferedTransposeOfTheWrongShape) {
    ggml_tensor* w = b_.input({4, 3, 1, 1});
    ggml_tensor* x = b_.input({4, 2, 1, 1});
    TapeHooks hooks;
    hooks.transposed_weight = [&](const ggml_tensor*) { return w; };
    Tape tape(ctx(), {}, hooks);
    EXPECT_THROW(gradients(tape, ggml_mul_mat(ctx(), w, x), {x}), Error);
}

TEST_F(TapeHooksTest, RoundsTheWeightGradientOnlyAsMuchAsBf16Does) {
    ggml_tensor* w = b_.input({40, 24, 1, 1});
    ggml_tensor* x = b_.input({40, 64, 1, 1});
    ggml_tensor* out = ggml_mul_mat(ctx(), w, x);
    Tape exact(ctx());
    TapeOptions options;
    options.weight_grad_type = GGML_TYPE_BF16;
    Tape rounded(ctx(), options);
    ggml_tensor* dw_exact = gradients(exact, out, {w}).find(w);
    ggml_tensor* dw_rounded = gradients(rounded, out, {w}).find(w);
    const std::vector<double> both = run(ggml_concat(ctx(), dw_exact, dw_rounded, 2));
    const auto middle = both.begin() + static_cast<int64_t>(both.size() / 2);
    gradcheck::Limits limits = {1e-2, 1e-4, 2e-2, 0.0, "two operands rounded to 8 bits"};
    const gradcheck::Verdict v =
        gradcheck::compare({middle, both.end()}, {both.begin(), middle}, 1.0, limits);
    EXPECT_TRUE(v.pass) << v.text();
    EXPECT_GT(v.relative_l2, 1e-5) << "the BF16 path was not taken";
}

TEST_F(TapeHooksTest, WideIndicesNeedTheHookWhenCpuNodesAreOff) {
    ggml_tensor* base = b_.constant({3, 6, 1, 1}, [](int64_t) { return 0.0F; });
    ggml_tensor* rows = b_.input({3, 2, 1, 1});
    ggml_tensor* indices = b_.indices_i64({2, 1, 1, 1}, [](int64_t i) { return 4 - i; });
    ggml_tensor* out = ggml_set_rows(ctx(), base, rows, indices);
    TapeOptions options;
    options.cpu_custom_ops = false;
    Tape without(ctx(), options);
    EXPECT_NE(error_of(without, out, {rows}).find("not I32"), std::string::npos);

    TapeHooks hooks;
    int n_asked = 0;
    hooks.constant_i32 = [&](const ggml_tensor*) {
        ++n_asked;
        return b_.indices_i32({2, 1, 1, 1}, [](int64_t i) { return 4 - i; });
    };
    Tape with(ctx(), options, hooks);
    const BackwardResult result = gradients(with, out, {rows});
    EXPECT_EQ(n_asked, 1);
    EXPECT_EQ(run(result.find(rows)), (std::vector<double>{13, 14, 15, 10, 11, 12}));
}

TEST(TapeTranspose, AgreesWithGgmlOnEveryShapeAndStride) {
    const Shape shapes[] = {
        {1, 1, 1, 1}, {1, 7, 1, 1}, {33, 1, 2, 1}, {16, 16, 1, 1}, {35, 50, 3, 2}};
    for (const Shape& ne : shapes) {
        for (const bool strided : {false, true}) {
            Session session(3);
            Builder b(session.leaf_context(), session.node_context(), "transpose", 1.0, false);
            ggml_tensor* x = b.input(ne);
            if (strided) {
                x = ggml_permute(session.node_context(), x, 2, 0, 1, 3);
            }
            Tape tape(session.node_context());
            ggml_tensor* ours = tape.transpose(x);
            EXPECT_EQ(ours, tape.transpose(x)) << "cached";
            ggml_tensor* theirs =
                ggml_cont(session.node_context(), ggml_transpose(session.node_context(), x));
            session.allocate_leaves(b.leaves());
            session.build({ours, theirs});
            session.compute();
            EXPECT_EQ(values_of(ours), values_of(theirs)) << ne[0] << " x " << ne[1];
        }
    }
}

}  // namespace
}  // namespace voodoo::autodiff
