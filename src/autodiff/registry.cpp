// The table of all vjp rules.
#include <map>
#include <utility>

#include "autodiff/rules/rules.h"

namespace voodoo::autodiff {

namespace {

constexpr int kNoSubOp = -1;

// clang-format off
constexpr Rule kRules[] = {
    {"ADD",            GGML_OP_ADD,            kNoSubOp, rules::add,        nullptr},
    {"SUB",            GGML_OP_SUB,            kNoSubOp, rules::sub,        nullptr},
    {"MUL",            GGML_OP_MUL,            kNoSubOp, rules::mul,        nullptr},
    {"DIV",            GGML_OP_DIV,            kNoSubOp, rules::div,        nullptr},
    {"ADD1",           GGML_OP_ADD1,           kNoSubOp, rules::add1,       nullptr},
    {"SCALE",          GGML_OP_SCALE,          kNoSubOp, rules::scale,      nullptr},
    {"SQR",            GGML_OP_SQR,            kNoSubOp, rules::sqr,        nullptr},
    {"SQRT",           GGML_OP_SQRT,           kNoSubOp, rules::sqrt,       nullptr},
    {"LOG",            GGML_OP_LOG,            kNoSubOp, rules::log,        nullptr},
    {"SIN",            GGML_OP_SIN,            kNoSubOp, rules::sin,        nullptr},
    {"COS",            GGML_OP_COS,            kNoSubOp, rules::cos,        nullptr},
    {"CLAMP",          GGML_OP_CLAMP,          kNoSubOp, rules::clamp,      nullptr},
    {"LEAKY_RELU",     GGML_OP_LEAKY_RELU,     kNoSubOp, rules::leaky_relu, nullptr},
    {"SUM",            GGML_OP_SUM,            kNoSubOp, rules::sum,        nullptr},
    {"SUM_ROWS",       GGML_OP_SUM_ROWS,       kNoSubOp, rules::sum_rows,   nullptr},
    {"MEAN",           GGML_OP_MEAN,           kNoSubOp, rules::mean,       nullptr},
    {"REPEAT",         GGML_OP_REPEAT,         kNoSubOp, rules::repeat,     nullptr},
    {"CONCAT",         GGML_OP_CONCAT,         kNoSubOp, rules::concat,     nullptr},
    {"MUL_MAT",        GGML_OP_MUL_MAT,        kNoSubOp, rules::mul_mat,    nullptr},
    {"MUL_MAT_ID",     GGML_OP_MUL_MAT_ID,     kNoSubOp, rules::mul_mat_id, nullptr},
    {"ADD_ID",         GGML_OP_ADD_ID,         kNoSubOp, rules::add_id,     nullptr},
    {"GET_ROWS",       GGML_OP_GET_ROWS,       kNoSubOp, rules::get_rows,   nullptr},
    {"SET_ROWS",       GGML_OP_SET_ROWS,       kNoSubOp, rules::set_rows,   nullptr},
    {"CPY",            GGML_OP_CPY,            kNoSubOp, rules::copy,       nullptr},
    {"DUP",            GGML_OP_DUP,            kNoSubOp, rules::copy,       nullptr},
    {"CONT",           GGML_OP_CONT,           kNoSubOp, rules::copy,       nullptr},
    {"RESHAPE",        GGML_OP_RESHAPE,        kNoSubOp, rules::reshape,    nullptr},
    {"PERMUTE",        GGML_OP_PERMUTE,        kNoSubOp, rules::permute,    nullptr},
    {"TRANSPOSE",      GGML_OP_TRANSPOSE,      kNoSubOp, rules::transpose,  nullptr},
    {"VIEW",           GGML_OP_VIEW,           kNoSubOp, rules::view,       rules::refuse_view},
    {"PAD",            GGML_OP_PAD,            kNoSubOp, rules::pad,        rules::refuse_pad},
    {"TRI",            GGML_OP_TRI,            kNoSubOp, rules::tri,        nullptr},
    {"SOFT_MAX",       GGML_OP_SOFT_MAX,       kNoSubOp, rules::soft_max,   rules::refuse_soft_max},
    {"DIAG_MASK_INF",  GGML_OP_DIAG_MASK_INF,  kNoSubOp, rules::diag_mask,  nullptr},
    {"DIAG_MASK_ZERO", GGML_OP_DIAG_MASK_ZERO, kNoSubOp, rules::diag_mask,  nullptr},
    {"ROPE",           GGML_OP_ROPE,           kNoSubOp, rules::rope,       rules::refuse_rope},
    {"ROPE_BACK",      GGML_OP_ROPE_BACK,      kNoSubOp, rules::rope,       rules::refuse_rope},
    {"NORM",           GGML_OP_NORM,           kNoSubOp, rules::norm,       nullptr},
    {"RMS_NORM",       GGML_OP_RMS_NORM,       kNoSubOp, rules::rms_norm,   nullptr},
    {"GROUP_NORM",     GGML_OP_GROUP_NORM,     kNoSubOp, rules::group_norm, rules::refuse_group_norm},
    {"L2_NORM",        GGML_OP_L2_NORM,        kNoSubOp, rules::l2_norm,    nullptr},
    {"DSV4_HC_COMB",   GGML_OP_DSV4_HC_COMB,   kNoSubOp, rules::hc_comb,    nullptr},
    {"DSV4_HC_PRE",    GGML_OP_DSV4_HC_PRE,    kNoSubOp, rules::hc_pre,     nullptr},
    {"DSV4_HC_POST",   GGML_OP_DSV4_HC_POST,   kNoSubOp, rules::hc_post,    nullptr},
    {"SET",            GGML_OP_SET,            kNoSubOp, rules::set,        nullptr},
    {"ROLL",           GGML_OP_ROLL,           kNoSubOp, rules::roll,       nullptr},
    {"CUMSUM",         GGML_OP_CUMSUM,         kNoSubOp, rules::cumsum,     nullptr},
    {"DIAG",           GGML_OP_DIAG,           kNoSubOp, rules::diag,       nullptr},
    {"SOLVE_TRI",      GGML_OP_SOLVE_TRI,      kNoSubOp, rules::solve_tri,  nullptr},
    {"SSM_CONV",       GGML_OP_SSM_CONV,       kNoSubOp, rules::ssm_conv,   nullptr},
    {"SSM_SCAN",       GGML_OP_SSM_SCAN,       kNoSubOp, rules::ssm_scan,   rules::refuse_ssm_scan},
    {"RWKV_WKV6",      GGML_OP_RWKV_WKV6,      kNoSubOp, rules::rwkv_wkv6,  nullptr},
    {"RWKV_WKV7",      GGML_OP_RWKV_WKV7,      kNoSubOp, rules::rwkv_wkv7,  nullptr},
    {"GATED_LINEAR_ATTN", GGML_OP_GATED_LINEAR_ATTN, kNoSubOp, rules::gated_linear_attn, nullptr},
    {"GATED_DELTA_NET", GGML_OP_GATED_DELTA_NET, kNoSubOp, rules::gated_delta_net, rules::refuse_gated_delta_net},

    {"UNARY:ABS",         GGML_OP_UNARY, GGML_UNARY_OP_ABS,         rules::unary, nullptr},
    {"UNARY:NEG",         GGML_OP_UNARY, GGML_UNARY_OP_NEG,         rules::unary, nullptr},
    {"UNARY:TANH",        GGML_OP_UNARY, GGML_UNARY_OP_TANH,        rules::unary, nullptr},
    {"UNARY:ELU",         GGML_OP_UNARY, GGML_UNARY_OP_ELU,         rules::unary, nullptr},
    {"UNARY:RELU",        GGML_OP_UNARY, GGML_UNARY_OP_RELU,        rules::unary, nullptr},
    {"UNARY:SIGMOID",     GGML_OP_UNARY, GGML_UNARY_OP_SIGMOID,     rules::unary, nullptr},
    {"UNARY:GELU",        GGML_OP_UNARY, GGML_UNARY_OP_GELU,        rules::unary, nullptr},
    {"UNARY:GELU_QUICK",  GGML_OP_UNARY, GGML_UNARY_OP_GELU_QUICK,  rules::unary, nullptr},
    {"UNARY:SILU",        GGML_OP_UNARY, GGML_UNARY_OP_SILU,        rules::unary, nullptr},
    {"UNARY:HARDSWISH",   GGML_OP_UNARY, GGML_UNARY_OP_HARDSWISH,   rules::unary, nullptr},
    {"UNARY:HARDSIGMOID", GGML_OP_UNARY, GGML_UNARY_OP_HARDSIGMOID, rules::unary, nullptr},
    {"UNARY:EXP",         GGML_OP_UNARY, GGML_UNARY_OP_EXP,         rules::unary, nullptr},
    {"UNARY:EXPM1",       GGML_OP_UNARY, GGML_UNARY_OP_EXPM1,       rules::unary, nullptr},
    {"UNARY:SOFTPLUS",    GGML_OP_UNARY, GGML_UNARY_OP_SOFTPLUS,    rules::unary, nullptr},
    {"UNARY:GELU_ERF",    GGML_OP_UNARY, GGML_UNARY_OP_GELU_ERF,    rules::unary, nullptr},
    {"UNARY:XIELU",       GGML_OP_UNARY, GGML_UNARY_OP_XIELU,       rules::unary, nullptr},

    {"GLU:REGLU",        GGML_OP_GLU, GGML_GLU_OP_REGLU,        rules::glu, nullptr},
    {"GLU:GEGLU",        GGML_OP_GLU, GGML_GLU_OP_GEGLU,        rules::glu, nullptr},
    {"GLU:SWIGLU",       GGML_OP_GLU, GGML_GLU_OP_SWIGLU,       rules::glu, nullptr},
    {"GLU:SWIGLU_OAI",   GGML_OP_GLU, GGML_GLU_OP_SWIGLU_OAI,   rules::glu, nullptr},
    {"GLU:GEGLU_ERF",    GGML_OP_GLU, GGML_GLU_OP_GEGLU_ERF,    rules::glu, nullptr},
    {"GLU:GEGLU_QUICK",  GGML_OP_GLU, GGML_GLU_OP_GEGLU_QUICK,  rules::glu, nullptr},
    {"GLU:SWIGLU_CLAMP", GGML_OP_GLU, GGML_GLU_OP_SWIGLU_CLAMP, rules::glu, nullptr},

    // The gradient stops at these: indices, generated constants, functions that are constant almost everywhere.
    {"UNARY:SGN",   GGML_OP_UNARY, GGML_UNARY_OP_SGN,   nullptr, nullptr},
    {"UNARY:STEP",  GGML_OP_UNARY, GGML_UNARY_OP_STEP,  nullptr, nullptr},
    {"UNARY:FLOOR", GGML_OP_UNARY, GGML_UNARY_OP_FLOOR, nullptr, nullptr},
    {"UNARY:CEIL",  GGML_OP_UNARY, GGML_UNARY_OP_CEIL,  nullptr, nullptr},
    {"UNARY:ROUND", GGML_OP_UNARY, GGML_UNARY_OP_ROUND, nullptr, nullptr},
    {"UNARY:TRUNC", GGML_OP_UNARY, GGML_UNARY_OP_TRUNC, nullptr, nullptr},
    {"FILL",        GGML_OP_FILL,        kNoSubOp, nullptr, nullptr},
    {"ARANGE",      GGML_OP_ARANGE,      kNoSubOp, nullptr, nullptr},
    {"ARGMAX",      GGML_OP_ARGMAX,      kNoSubOp, nullptr, nullptr},
    {"ARGSORT",     GGML_OP_ARGSORT,     kNoSubOp, nullptr, nullptr},
    {"TOP_K",       GGML_OP_TOP_K,       kNoSubOp, nullptr, nullptr},
    {"COUNT_EQUAL", GGML_OP_COUNT_EQUAL, kNoSubOp, nullptr, nullptr},
};
// clang-format on

int sub_op_of(const ggml_tensor* node) {
    if (node->op == GGML_OP_UNARY) {
        return ggml_get_unary_op(node);
    }
    return node->op == GGML_OP_GLU ? static_cast<int>(ggml_get_glu_op(node)) : kNoSubOp;
}

}  // namespace

std::span<const Rule> all_rules() {
    return kRules;
}

const Rule* find_rule(const ggml_tensor* node) {
    static const auto* const index = [] {
        auto* map = new std::map<std::pair<int, int>, const Rule*>();
        for (const Rule& rule : kRules) {
            map->emplace(std::pair<int, int>(rule.op, rule.sub_op), &rule);
        }
        return map;
    }();
    const auto found = index->find({node->op, sub_op_of(node)});
    return found == index->end() ? nullptr : found->second;
}

std::string refusal(const Rule& rule, const ggml_tensor* node, const Needs& needs) {
    return rule.refuse == nullptr ? "" : rule.refuse(node, needs);
}

}  // namespace voodoo::autodiff
