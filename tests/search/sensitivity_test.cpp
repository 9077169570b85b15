// Second-order costs from sampled rows: unbiased, with honest errors, and resumable.
#include "search/sensitivity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "expect_error.h"

namespace voodoo::search {
namespace {

/// A tensor of n_rows rows whose cost per row is proxy * (0.5 .. 1.5), of which some are sampled.
struct Population {
    Population(int64_t n, uint64_t seed) {
        Random random(seed, "population");
        for (int64_t r = 0; r < n; ++r) {
            proxy.push_back(std::exp(random.normal()));
            squares.push_back(proxy.back() * (0.5 + random.uniform()));
        }
    }
    double total() const { return std::accumulate(squares.begin(), squares.end(), 0.0); }
    std::vector<double> proxy, squares;
};

/// The first n_certain rows are certain, of the others n_sampled are drawn.
struct Drawn {
    SampledRows rows;
    RowSquares chunk;
};
Drawn draw(const Population& population, int64_t n_certain, int64_t n_sampled, uint64_t seed) {
    const auto n = static_cast<int64_t>(population.proxy.size());
    std::vector<int64_t> rest(static_cast<size_t>(n - n_certain));
    std::iota(rest.begin(), rest.end(), n_certain);
    Random random(seed, "draw");
    for (size_t i = rest.size(); i > 1; --i) std::swap(rest[i - 1], rest[random.below(i)]);
    Drawn drawn;
    drawn.rows.n_types = 2;
    drawn.rows.n_rows = n;
    std::vector<int64_t> taken(static_cast<size_t>(n_certain));
    std::iota(taken.begin(), taken.end(), 0);
    taken.insert(taken.end(), rest.begin(), rest.begin() + n_sampled);
    for (size_t i = 0; i < taken.size(); ++i) {
        const auto r = static_cast<size_t>(taken[i]);
        drawn.rows.certain.push_back(static_cast<int64_t>(i) < n_certain ? 1 : 0);
        drawn.chunk.proxy.push_back(population.proxy[r]);
        drawn.chunk.squares.push_back(population.squares[r]);
    }
    // The second type costs three times as much.
    for (const int64_t row : taken)
        drawn.chunk.squares.push_back(3.0 * population.squares[static_cast<size_t>(row)]);
    for (const int64_t row : rest)
        drawn.chunk.proxy_rest += population.proxy[static_cast<size_t>(row)];
    return drawn;
}

TEST(SensitivityScores, AreExactWhereAllRowsAreSeen) {
    const Population population(40, 1);
    const Drawn all = draw(population, 40, 0, 1);
    Sensitivity sensitivity({all.rows}, 10);
    ASSERT_TRUE(sensitivity.add(std::span(&all.chunk, 1)));
    ASSERT_TRUE(sensitivity.add(std::span(&all.chunk, 1)));
    const SensitivityScores scores = sensitivity.scores();
    EXPECT_EQ(scores.n_chunks, 2);
    EXPECT_NEAR(scores.cost[0][0], population.total() / 20.0, 1e-9 * population.total());
    EXPECT_NEAR(scores.cost[0][1], 3.0 * population.total() / 20.0, 1e-9 * population.total());
    EXPECT_NEAR(scores.error[0][0], 0.0, 1e-9);
}

TEST(SensitivityScores, FromAFewRowsAreAsFarOffAsTheirErrorsSay) {
    const Population population(2000, 2);
    const double truth = population.total() / 2.0;
    double mean = 0.0, squared_z = 0.0, mean_error = 0.0;
    constexpr int kDraws = 400;
    for (int i = 0; i < kDraws; ++i) {
        const Drawn drawn = draw(population, 20, 60, static_cast<uint64_t>(i));
        Sensitivity sensitivity({drawn.rows}, 1);
        // Twice the same chunk: no variance between chunks, only that of the rows.
        sensitivity.add(std::span(&drawn.chunk, 1));
        sensitivity.add(std::span(&drawn.chunk, 1));
        const SensitivityScores scores = sensitivity.scores();
        mean += scores.cost[0][0] / kDraws;
        mean_error += scores.error[0][0] / kDraws;
        squared_z += std::pow((scores.cost[0][0] - truth) / scores.error[0][0], 2) / kDraws;
    }
    EXPECT_NEAR(mean / truth, 1.0, 0.02);
    EXPECT_LT(mean_error / truth, 0.1) << "the proxy should explain most of the spread";
    EXPECT_GT(squared_z, 0.5);
    EXPECT_LT(squared_z, 2.5);
}

TEST(SensitivityScores, CountTheSpreadOverChunks) {
    const SampledRows rows{1, 2, {1, 1}};
    Sensitivity sensitivity({rows}, 1);
    Random random(3, "chunks");
    double sum = 0.0, square = 0.0;
    constexpr int kChunks = 50;
    for (int i = 0; i < kChunks; ++i) {
        const double x = random.uniform();
        sum += x / 2.0;
        square += x * x / 4.0;
        const RowSquares chunk{{x, 0.0}, {1.0, 1.0}, 0.0};
        sensitivity.add(std::span(&chunk, 1));
    }
    const double mean = sum / kChunks;
    const double error = std::sqrt((square / kChunks - mean * mean) / (kChunks - 1));
    EXPECT_NEAR(sensitivity.scores().cost[0][0], mean, 1e-12);
    EXPECT_NEAR(sensitivity.scores().error[0][0], error, 1e-12);
}

TEST(SensitivityScores, LeaveOutAChunkThatIsNotFinite) {
    const SampledRows rows{1, 1, {1}};
    Sensitivity sensitivity({rows, rows}, 1);
    std::vector<RowSquares> good(2, {{4.0}, {1.0}, 0.0});
    std::vector<RowSquares> bad = good;
    bad[1].squares[0] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(sensitivity.add(good));
    EXPECT_FALSE(sensitivity.add(bad));
    EXPECT_EQ(sensitivity.n_chunks(), 1);
    EXPECT_EQ(sensitivity.scores().cost[0][0], 2.0);
}

TEST(SensitivityScores, GoOnBitIdenticallyAfterARestore) {
    const Population population(100, 5);
    const Drawn first = draw(population, 5, 20, 1);
    Drawn second = first;
    for (double& x : second.chunk.squares) x *= 1.7;
    Sensitivity whole({first.rows}, 3);
    whole.add(std::span(&first.chunk, 1));
    Sensitivity resumed({first.rows}, 3);
    resumed.restore(whole.serialize());
    whole.add(std::span(&second.chunk, 1));
    resumed.add(std::span(&second.chunk, 1));
    EXPECT_EQ(resumed.serialize(), whole.serialize());
    EXPECT_EQ(resumed.scores().cost, whole.scores().cost);
    EXPECT_EQ(resumed.half(1), whole.half(1));
}

TEST(SensitivityScores, RefuseAStateOfOtherTensorsOrADamagedOne) {
    const auto rows = [](size_t n_types, int64_t n_rows, size_t n_sampled) {
        return std::vector<SampledRows>{{n_types, n_rows, std::vector<char>(n_sampled, 1)}};
    };
    Sensitivity one(rows(1, 4, 1), 1);
    const Sensitivity other(rows(2, 4, 1), 1);
    EXPECT_ERROR(one.restore(other.serialize()), ErrorKind::bad_file);
    std::string bytes = one.serialize();
    bytes[bytes.size() - 1] = '\xff';
    bytes[bytes.size() - 2] = '\xff';
    EXPECT_ERROR(one.restore(bytes), ErrorKind::bad_file);
    EXPECT_ERROR(Sensitivity(rows(1, 1, 2), 1), ErrorKind::usage);
    EXPECT_ERROR(Sensitivity(rows(1, 1, 1), 0), ErrorKind::usage);
}

TEST(PlanDisagreement, IsWhatTheWorseHalfsChoiceCostsMore) {
    const SampledRows rows{2, 1, {1}};
    Sensitivity sensitivity({rows}, 1);
    const RowSquares even{{2.0, 4.0}, {1.0}, 0.0};  // prefers type 0
    const RowSquares odd{{8.0, 4.0}, {1.0}, 0.0};   // prefers type 1
    sensitivity.add(std::span(&even, 1));
    sensitivity.add(std::span(&odd, 1));
    const auto cheapest = [](const std::vector<std::vector<double>>& cost) {
        return std::vector<size_t>{cost[0][0] <= cost[0][1] ? size_t{0} : size_t{1}};
    };
    // All chunks: 5 and 4, halved: 2.5 and 2; the even half would pay 2.5.
    EXPECT_NEAR(plan_disagreement(sensitivity, cheapest), 0.25, 1e-12);
}

}  // namespace
}  // namespace voodoo::search
