// What types_test and codec_test check, for the types whose tables take seconds to build.
#include <gtest/gtest.h>

#include "type_checks.h"

namespace voodoo::quant {
namespace {

TEST(SlowTypes, UseTheImatrixAsTheTableSays) {
    int n_types = 0;
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) continue;
        expect_true_imatrix_facts(info);
        ++n_types;
    }
    EXPECT_EQ(n_types, 5);
}

TEST(SlowTypes, NeverLetGgmlAbortOnHostileNumbers) {
    for (const TypeInfo& info : all_types()) {
        if (!has_slow_tables(info.type)) continue;
        ggml_quantize_init(info.type);  // before the fork, so that the child has the tables
        expect_no_abort(info);
    }
}

}  // namespace
}  // namespace voodoo::quant
