// The mixes of two adjacent types at a size.
#include "search/uniform_mix.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "expect_error.h"

namespace voodoo::search {
namespace {

const std::vector<std::string> kOrder = {"Q2", "Q4", "Q8"};

std::vector<MixTensor> four_tensors() {
    std::vector<MixTensor> tensors;
    for (int i = 0; i < 4; ++i) {
        tensors.push_back({fmt::format("t{}", i), kOrder, {200, 400, 800}, static_cast<double>(i)});
    }
    return tensors;
}

TEST(UniformMix, FillsInFileOrderWithThePairAroundTheBudget) {
    const auto mixes = uniform_mixes(four_tensors(), kOrder, 100, 100 + 1250);
    ASSERT_EQ(mixes.size(), 1u);
    EXPECT_EQ(mixes[0].name, "Q4+Q2");
    EXPECT_EQ(mixes[0].types, (std::vector<std::string>{"Q4", "Q4", "Q2", "Q2"}));
    EXPECT_EQ(mixes[0].total_bytes, 100u + 1200u);
    EXPECT_EQ(mixes[0].n_upper, 2u);
}

TEST(UniformMix, FillsBySensitivityWhenAsked) {
    const auto mixes = uniform_mixes(four_tensors(), kOrder, 0, 1250, {MixOrder::sensitivity, 2});
    ASSERT_EQ(mixes.size(), 1u);
    EXPECT_EQ(mixes[0].types, (std::vector<std::string>{"Q2", "Q2", "Q4", "Q4"}));
}

TEST(UniformMix, GivesTheNextSmallerPairAsASecondCandidate) {
    const auto mixes = uniform_mixes(four_tensors(), kOrder, 0, 2500);
    ASSERT_EQ(mixes.size(), 2u);
    EXPECT_EQ(mixes[0].name, "Q8+Q4");
    EXPECT_EQ(mixes[0].total_bytes, 2400u);
    EXPECT_EQ(mixes[1].name, "Q4");
    EXPECT_EQ(mixes[1].total_bytes, 1600u);
    EXPECT_EQ(uniform_mixes(four_tensors(), kOrder, 0, 2500, {MixOrder::file, 1}).size(), 1u);
}

TEST(UniformMix, UsesTheLargestTypeAloneWhenAllFits) {
    const auto mixes = uniform_mixes(four_tensors(), kOrder, 0, 1'000'000);
    ASSERT_FALSE(mixes.empty());
    EXPECT_EQ(mixes[0].name, "Q8");
    EXPECT_EQ(mixes[0].total_bytes, 3200u);
    EXPECT_EQ(mixes[0].types, std::vector<std::string>(4, "Q8"));
}

TEST(UniformMix, FallsBackToTheNextLargerLegalType) {
    auto tensors = four_tensors();
    tensors[1].types = {"Q8"};  // e.g. rows that are no multiple of 256
    tensors[1].bytes = {800};
    tensors[2].types = {"Q2"};
    tensors[2].bytes = {200};
    const auto mixes = uniform_mixes(tensors, kOrder, 0, 1400);
    ASSERT_EQ(mixes.size(), 1u);
    EXPECT_EQ(mixes[0].types, (std::vector<std::string>{"Q2", "Q8", "Q2", "Q2"}));
    EXPECT_EQ(uniform_mixes(tensors, kOrder, 0, 1600)[0].types,
              (std::vector<std::string>{"Q4", "Q8", "Q2", "Q2"}));
}

TEST(UniformMix, NeverExceedsTheBudgetAndLeavesNoRoomForOneMore) {
    Random random(1, "mix");
    for (int round = 0; round < 200; ++round) {
        std::vector<MixTensor> tensors;
        uint64_t least = 7, most = 7;
        for (size_t t = 0; t < 1 + random.below(20); ++t) {
            const uint64_t n = 32 * (1 + random.below(100));
            tensors.push_back({"t", kOrder, {2 * n, 4 * n, 8 * n}, random.uniform()});
            least += 2 * n;
            most += 8 * n;
        }
        const uint64_t budget = least + random.below(most - least);
        for (const MixCandidate& mix :
             uniform_mixes(tensors, kOrder, 7, budget, {MixOrder::sensitivity, 9})) {
            ASSERT_LE(mix.total_bytes, budget);
            uint64_t total = 7;
            const std::string upper = mix.name.substr(0, 2),
                              lower = mix.name.substr(mix.name.size() - 2);
            for (size_t t = 0; t < tensors.size(); ++t) {
                const auto at = [&](const std::string& type) {
                    return tensors[t].bytes[static_cast<size_t>(
                        std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin())];
                };
                total += at(mix.types[t]);
                ASSERT_TRUE(mix.types[t] == upper || mix.types[t] == lower);
                if (mix.types[t] != upper) {
                    ASSERT_GT(mix.total_bytes - at(lower) + at(upper), budget)
                        << "tensor " << t << " still fits";
                }
            }
            ASSERT_EQ(total, mix.total_bytes);
        }
    }
}

TEST(UniformMix, RefusesWhatCannotBe) {
    EXPECT_ERROR(uniform_mixes(four_tensors(), kOrder, 0, 799), ErrorKind::infeasible_budget);
    EXPECT_ERROR(uniform_mixes(four_tensors(), {}, 0, 800), ErrorKind::usage);
    auto tensors = four_tensors();
    tensors[0].bytes.pop_back();
    EXPECT_ERROR(uniform_mixes(tensors, kOrder, 0, 800), ErrorKind::usage);
}

}  // namespace
}  // namespace voodoo::search
