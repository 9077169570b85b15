// Gradient-check cases of the binary, elementwise and reducing ops.
#include "gradcheck.h"

namespace voodoo::gradcheck {

namespace {

using BinaryOp = ggml_tensor* (*)(ggml_context*, ggml_tensor*, ggml_tensor*);

/// The shapes that matter to a binary op: equal, bias row, column, scalar, tiled, and a strided
/// right operand.
void add_binary(std::vector<Case>& cases, const std::string& rule, BinaryOp op, Tolerance tolerance,
                bool divides) {
    const Avoid away = divides ? Avoid{{0.0}, 0.4} : Avoid{};
    struct Form {
        const char* name;
        Shape a;
        Shape b;
    };
    const Form forms[] = {
        {"SameShape", {5, 3, 2, 2}, {5, 3, 2, 2}}, {"BiasRow", {7, 4, 2, 1}, {7, 1, 1, 1}},
        {"Column", {5, 3, 2, 1}, {1, 3, 2, 1}},    {"Scalar", {5, 3, 1, 1}, {1, 1, 1, 1}},
        {"Tiled", {6, 4, 2, 2}, {3, 2, 1, 2}},     {"SizeOne", {1, 1, 3, 1}, {1, 1, 1, 1}},
    };
    for (const Form& form : forms) {
        cases.push_back(
            {rule, form.name,
             [=](Builder& b) { return op(b.ctx(), b.input(form.a), b.input(form.b, away)); },
             tolerance});
        if (divides) {
            cases.back().scales = {1.0, 3.0};
        }
    }
    cases.push_back({rule, "PermutedOperands",
                     [=](Builder& b) {
                         ggml_tensor* x =
                             ggml_permute(b.ctx(), b.input({4, 3, 5, 1}), 0, 2, 1, 3);  // [4, 5, 3]
                         ggml_tensor* y = ggml_permute(b.ctx(), b.input({5, 4, 3, 1}, away), 1, 0,
                                                       2, 3);  // [4, 5, 3]
                         return op(b.ctx(), x, y);
                     },
                     tolerance});
    if (divides) {
        cases.back().scales = {1.0, 3.0};
    }
}

/// ADD1 is deprecated in ggml's header but still an op that a graph may hold.
ggml_tensor* add1(Builder& b) {
    ggml_tensor* x = b.input({5, 3, 1, 1});
    ggml_tensor* y = ggml_dup_tensor(b.ctx(), x);
    y->op = GGML_OP_ADD1;
    y->src[0] = x;
    y->src[1] = b.input({1, 1, 1, 1});
    return y;
}

ggml_tensor* square_of_itself(Builder& b) {
    ggml_tensor* x = b.input({4, 3, 1, 1});
    return ggml_mul(b.ctx(), x, x);
}

}  // namespace

std::vector<Case> elementwise_cases() {
    std::vector<Case> cases;
    add_binary(cases, "ADD", ggml_add, Tolerance::linear, false);
    add_binary(cases, "SUB", ggml_sub, Tolerance::linear, false);
    add_binary(cases, "MUL", ggml_mul, Tolerance::linear, false);
    add_binary(cases, "DIV", ggml_div, Tolerance::smooth, true);
    cases.push_back({"MUL", "BothOperandsAreOneValue", square_of_itself, Tolerance::linear});
    cases.push_back({"ADD", "OneValueUsedThreeTimes",
                     [](Builder& b) {
                         ggml_tensor* x = b.input({4, 3, 1, 1});
                         return ggml_add(b.ctx(), ggml_add(b.ctx(), x, x),
                                         ggml_scale(b.ctx(), x, 0.7F));
                     },
                     Tolerance::linear});
    cases.push_back({"ADD1", "Scalar", add1, Tolerance::linear});
    cases.push_back({"SCALE", "Plain",
                     [](Builder& b) {
                         return ggml_scale(b.ctx(), b.input({5, 3, 2, 1}), -0.37F);
                     },
                     Tolerance::linear});
    cases.push_back({"SCALE", "WithBias",
                     [](Builder& b) {
                         return ggml_scale_bias(b.ctx(), b.input({5, 3, 2, 1}), 1.7F, 4.0F);
                     },
                     Tolerance::linear});
    cases.push_back({"SQR", "Plain",
                     [](Builder& b) {
                         return ggml_sqr(b.ctx(), b.input({5, 3, 2, 1}));
                     },
                     Tolerance::linear});
    cases.push_back({"SQRT",
                     "Plain",
                     [](Builder& b) {
                         return ggml_sqrt(b.ctx(), b.input_between({5, 3, 2, 1}, 0.5, 9.0));
                     },
                     Tolerance::smooth,
                     0.0,
                     false,
                     {1.0}});
    cases.push_back({"LOG",
                     "Plain",
                     [](Builder& b) {
                         return ggml_log(b.ctx(), b.input_between({5, 3, 2, 1}, 0.5, 9.0));
                     },
                     Tolerance::smooth,
                     0.0,
                     false,
                     {1.0}});
    cases.push_back({"SIN", "Plain", [](Builder& b) {
                         return ggml_sin(b.ctx(), b.input({5, 3, 2, 1}));
                     }});
    cases.push_back({"COS", "Plain", [](Builder& b) {
                         return ggml_cos(b.ctx(), b.input({5, 3, 2, 1}));
                     }});
    cases.push_back(
        {"CLAMP", "BothSides",
         [](Builder& b) {
             return ggml_clamp(b.ctx(), b.input({9, 4, 2, 1}, {{-0.4, 0.6}, 0.07}), -0.4F, 0.6F);
         },
         Tolerance::smooth});
    cases.push_back(
        {"LEAKY_RELU", "Plain",
         [](Builder& b) {
             return ggml_leaky_relu(b.ctx(), b.input({5, 3, 2, 1}, {{0.0}, 0.07}), 0.17F, false);
         },
         Tolerance::smooth});
    cases.push_back({"SUM", "AllElements",
                     [](Builder& b) {
                         return ggml_sum(b.ctx(), b.input({5, 3, 2, 2}));
                     },
                     Tolerance::linear});
    cases.push_back({"SUM_ROWS", "Plain",
                     [](Builder& b) {
                         return ggml_sum_rows(b.ctx(), b.input({5, 3, 2, 2}));
                     },
                     Tolerance::linear});
    cases.push_back({"MEAN", "Plain",
                     [](Builder& b) {
                         return ggml_mean(b.ctx(), b.input({5, 3, 2, 2}));
                     },
                     Tolerance::linear});
    cases.push_back({"REPEAT", "EveryDim",
                     [](Builder& b) {
                         return ggml_repeat_4d(b.ctx(), b.input({3, 2, 1, 2}), 6, 4, 3, 2);
                     },
                     Tolerance::linear});
    cases.push_back({"REPEAT", "WideRows",
                     [](Builder& b) {
                         return ggml_repeat_4d(b.ctx(), b.input({130, 1, 1, 1}), 130, 9, 1, 1);
                     },
                     Tolerance::linear});
    for (int dim = 0; dim < 4; ++dim) {
        cases.push_back({"CONCAT", "Dim" + std::to_string(dim),
                         [dim](Builder& b) {
                             Shape other = {4, 3, 2, 2};
                             other[static_cast<size_t>(dim)] = 5;
                             ggml_tensor* x = b.input({4, 3, 2, 2});
                             return ggml_concat(b.ctx(), x, b.input(other), dim);
                         },
                         Tolerance::linear});
    }
    return cases;
}

}  // namespace voodoo::gradcheck
