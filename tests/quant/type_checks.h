// Checks of one type's facts and of its encoder's safety, for the tests of fast and of slow types.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>

#include "test_data.h"

namespace voodoo::quant {

/// The table's claims about a type's use of importances and of the whole row, against the encoder.
inline void expect_true_imatrix_facts(const TypeInfo& info) {
    SCOPED_TRACE(std::string(info.name));
    ThreadPool pool(1);
    const MatrixShape shape{512, 8, 1};
    const std::vector<float> weights = random_weights(shape.n_elements(), 1);
    const std::vector<float> importance = random_importance(shape.n_per_row, 2);
    const std::vector<std::byte> with = encoded(info.type, weights, shape, importance, pool);
    if (!info.aborts_without_imatrix) {
        const std::vector<std::byte> without = encoded(info.type, weights, shape, {}, pool);
        EXPECT_EQ(with == without, info.imatrix == ImatrixNeed::none);
    }
    // A change in the row's last 256 columns changes the first block only where the row's
    // statistics count.
    std::vector<float> changed = weights;
    for (size_t i = 256; i < 512; ++i) changed[i] *= 3.0f;
    const std::vector<std::byte> other = encoded(info.type, changed, shape, importance, pool);
    const auto half = static_cast<std::ptrdiff_t>(row_bytes(info.type, 256));
    const bool depends = !std::equal(with.begin(), with.begin() + half, other.begin());
    EXPECT_EQ(depends, info.whole_row_statistics);
}

/// Weights and importances of absurd magnitudes and patterns.
inline void make_hostile(Random& random, std::vector<float>& weights,
                         std::vector<float>& importance) {
    const double exponent = random.uniform() * 80.0 - 40.0;
    const double importance_exponent = random.uniform() * 70.0 - 38.0;
    for (float& w : weights) {
        const double scale = random.below(4) == 0 ? exponent : 0.0;
        w = static_cast<float>(random.normal() * std::pow(10.0, scale));
        if (random.below(8) == 0) w = 0.0f;
        if (random.below(2000) == 0) w = std::numeric_limits<float>::quiet_NaN();
    }
    const uint64_t run = 1ull << random.below(9);
    for (size_t i = 0; i < importance.size(); ++i) {
        importance[i] = static_cast<float>(
            random.uniform() * std::pow(10.0, (i / run) % 3 == 0 ? importance_exponent : 0.0));
        if ((i / run) % 3 == 1) importance[i] = 0.0f;
    }
}

/// Exit code of the child below: 0, or 3 where a tensor counts as usable but decodes to non-finite
/// values.
inline int encode_hostile(const TypeInfo& info) {
    const MatrixShape shape{256, 1, 1};
    ThreadPool pool(1);
    Random random(7, info.name);
    std::vector<float> weights(256);
    std::vector<float> importance(256);
    std::vector<float> back(256);
    std::vector<std::byte> bytes(1024);
    for (int i = 0; i < 400; ++i) {
        make_hostile(random, weights, importance);
        const EncodeResult result = encode(Encoder(), info.type, weights.data(), shape,
                                           importance.data(), bytes.data(), pool);
        if (!result.usable) continue;
        to_float(info.type, bytes.data(), back.data(), 256);
        for (const float x : back) {
            if (!std::isfinite(x)) return 3;
        }
    }
    return 0;
}

/// ggml aborts on numerical trouble. In a child process, so that an abort is a failure of the test
/// only.
inline void expect_no_abort(const TypeInfo& info) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::alarm(60);
        ::_exit(encode_hostile(info));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << info.name << " " << status;
}

}  // namespace voodoo::quant
