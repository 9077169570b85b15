#include "tools/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

namespace voodoo::tools {
namespace {

std::vector<Parameter> two_parameters() {
    std::vector<Parameter> parameters(2);
    parameters[0].resize(3);
    parameters[0].value = {1.0F, -2.0F, 0.5F};
    parameters[0].decays = true;
    parameters[1].resize(1);
    parameters[1].value = {4.0F};
    return parameters;
}

TEST(Adamw, FirstStepMovesEachWeightByTheRateAgainstItsGradient) {
    ThreadPool pool(1);
    std::vector<Parameter> parameters = two_parameters();
    parameters[0].grad = {0.1F, -0.2F, 0.0F};
    parameters[1].grad = {0.3F};
    AdamwOptions options;
    options.weight_decay = 0.0;
    const double norm = adamw_step(parameters, options, 0.01, 1, pool);
    EXPECT_NEAR(norm, std::sqrt(0.01 + 0.04 + 0.09), 1e-7);
    EXPECT_NEAR(parameters[0].value[0], 0.99, 1e-6);
    EXPECT_NEAR(parameters[0].value[1], -1.99, 1e-6);
    EXPECT_EQ(parameters[0].value[2], 0.5F);
    EXPECT_NEAR(parameters[1].value[0], 3.99, 1e-6);
    EXPECT_EQ(parameters[0].grad[0], 0.0F) << "gradients are zeroed for the next step";
}

TEST(Adamw, DecaysMatricesOnly) {
    ThreadPool pool(1);
    std::vector<Parameter> parameters = two_parameters();
    adamw_step(parameters, {}, 0.1, 1, pool);  // all gradients are zero
    EXPECT_NEAR(parameters[0].value[1], -2.0 * (1.0 - 0.1 * 0.1), 1e-6);
    EXPECT_EQ(parameters[1].value[0], 4.0F);
}

TEST(Adamw, ClipsTheGradientOverAllParameters) {
    ThreadPool pool(1);
    std::vector<Parameter> parameters = two_parameters();
    parameters[0].grad = {30.0F, 0.0F, 0.0F};
    parameters[1].grad = {40.0F};
    EXPECT_NEAR(adamw_step(parameters, {}, 0.1, 1, pool), 50.0, 1e-5);
    EXPECT_NEAR(parameters[0].first[0], 0.1 * 0.6, 1e-6);
    EXPECT_NEAR(parameters[1].first[0], 0.1 * 0.8, 1e-6);
}

TEST(Adamw, LeavesEverythingAsItWasWhenTheGradientIsNotFinite) {
    ThreadPool pool(1);
    std::vector<Parameter> parameters = two_parameters();
    parameters[1].grad = {INFINITY};
    EXPECT_FALSE(std::isfinite(adamw_step(parameters, {}, 0.1, 1, pool)));
    EXPECT_EQ(parameters[0].value[0], 1.0F);
    EXPECT_EQ(parameters[1].value[0], 4.0F);
}

TEST(LearningRate, RisesToThePeakAndFallsToATenthOfIt) {
    EXPECT_DOUBLE_EQ(learning_rate(5, 100, 10, 1.0), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(10, 100, 10, 1.0), 1.0);
    EXPECT_NEAR(learning_rate(55, 100, 10, 1.0), 0.55, 1e-12);
    EXPECT_NEAR(learning_rate(100, 100, 10, 1.0), 0.1, 1e-12);
}

}  // namespace
}  // namespace voodoo::tools
