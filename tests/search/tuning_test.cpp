// Tuning of norms and biases: Adam against a reference on numeric gradients, the schedule, the
// choice of the best state, saving and resuming.
#include "search/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/random.h"
#include "expect_error.h"

namespace voodoo::search {
namespace {

using Rows = std::vector<std::vector<double>>;

std::vector<TuningTensor> make_tensors() {
    return {{"attn_norm.weight", TuningForm::multiplied, {1.5F, -0.25F, 0.0F, 3.0F}},
            {"attn_q.bias", TuningForm::added, {0.5F, -2.0F, 0.0F}}};
}

/// A loss whose gradient says something about every element: sum of (w - target)^2 / 2.
struct Toy {
    Rows target = {{1.2, -0.5, 1.0, 2.5}, {0.75, -1.0, 1.0}};

    double loss(const Rows& w) const {
        double sum = 0.0;
        for (size_t t = 0; t < w.size(); ++t) {
            for (size_t i = 0; i < w[t].size(); ++i)
                sum += 0.5 * (w[t][i] - target[t][i]) * (w[t][i] - target[t][i]);
        }
        return sum;
    }
    Rows values(const Tuning& tuning) const {
        Rows w;
        for (size_t t = 0; t < tuning.tensors().size(); ++t) {
            const std::vector<float> values = tuning.values(t);
            w.emplace_back(values.begin(), values.end());
        }
        return w;
    }
    Rows gradients(const Tuning& tuning) const {
        Rows g = values(tuning);
        for (size_t t = 0; t < g.size(); ++t) {
            for (size_t i = 0; i < g[t].size(); ++i) g[t][i] -= target[t][i];
        }
        return g;
    }
};

TuningOptions options_of(int64_t n_steps, double lr = 1e-2) {
    TuningOptions options;
    options.n_steps = n_steps;
    options.lr = lr;
    return options;
}

/// Adam (Kingma and Ba 2015, algorithm 1) on z with dL/dz by central differences.
struct Reference {
    TuningOptions o;
    std::vector<TuningTensor> tensors = make_tensors();
    Toy toy;
    Rows z{{0, 0, 0, 0}, {0, 0, 0}}, m = z, v = z;

    Rows values() const {
        const double rms = std::sqrt((0.25 + 4.0) / 3.0);
        Rows w = z;
        for (size_t t = 0; t < w.size(); ++t) {
            for (size_t i = 0; i < w[t].size(); ++i) {
                const double source = tensors[t].source[i];
                w[t][i] = t == 0 ? source * std::exp(z[t][i]) : source + rms * z[t][i];
            }
        }
        return w;
    }
    void step(int number, double lr) {
        Rows g = z;
        const double h = 1e-5;
        for (size_t t = 0; t < z.size(); ++t) {
            for (size_t i = 0; i < z[t].size(); ++i) {
                const double at = z[t][i];
                z[t][i] = at + h;
                const double above = toy.loss(values());
                z[t][i] = at - h;
                g[t][i] = (above - toy.loss(values())) / (2.0 * h);
                z[t][i] = at;
            }
        }
        for (size_t t = 0; t < z.size(); ++t) {
            for (size_t i = 0; i < z[t].size(); ++i) {
                m[t][i] = o.beta1 * m[t][i] + (1 - o.beta1) * g[t][i];
                v[t][i] = o.beta2 * v[t][i] + (1 - o.beta2) * g[t][i] * g[t][i];
                const double m_hat = m[t][i] / (1 - std::pow(o.beta1, number));
                const double v_hat = v[t][i] / (1 - std::pow(o.beta2, number));
                z[t][i] -= lr * m_hat / (std::sqrt(v_hat) + o.epsilon);
            }
        }
    }
};

/// All checks that are due, with a loss that does not matter.
void skip_checks(Tuning& tuning, double loss = 1.0) {
    while (tuning.check_due()) tuning.check({loss, loss});
}

TEST(Tuning, FollowsAdamOnNumericGradientsOfBothForms) {
    Tuning tuning(make_tensors(), options_of(40, 0.02));
    Reference reference;
    reference.o = tuning.options();
    for (int s = 0; s < 40; ++s) {
        skip_checks(tuning);
        reference.step(s + 1, tuning.lr_at(s));
        ASSERT_TRUE(tuning.step(reference.toy.gradients(tuning)));
    }
    const Rows expected = reference.values();
    for (size_t t = 0; t < expected.size(); ++t) {
        for (size_t i = 0; i < expected[t].size(); ++i) {
            EXPECT_NEAR(tuning.values(t)[i], expected[t][i], 2e-5) << t << " " << i;
            const double moved = expected[t][i] - make_tensors()[t].source[i];
            EXPECT_EQ(std::abs(moved) > 0.01, t == 1 || i != 2) << "the test would be blind here";
        }
    }
}

TEST(Tuning, LeavesTheSourceUntouchedBeforeTheFirstStep) {
    const Tuning tuning(make_tensors(), options_of(10));
    EXPECT_EQ(tuning.values(0), make_tensors()[0].source);
    EXPECT_EQ(tuning.best_values(1), make_tensors()[1].source);
    EXPECT_EQ(tuning.n_parameters(), 7);
}

TEST(Tuning, LearningRateRisesLinearlyAndFallsAsACosine) {
    TuningOptions options = options_of(100, 0.5);
    options.warmup_share = 0.2;
    options.lr_end_ratio = 0.1;
    const Tuning tuning(make_tensors(), options);
    EXPECT_NEAR(tuning.lr_at(0), 0.025, 1e-12);
    EXPECT_NEAR(tuning.lr_at(9), 0.25, 1e-12);
    EXPECT_NEAR(tuning.lr_at(19), 0.5, 1e-12);
    EXPECT_NEAR(tuning.lr_at(59), 0.5 * (0.1 + 0.9 * 0.5), 1e-12);
    EXPECT_NEAR(tuning.lr_at(99), 0.05, 1e-12);
    options.warmup_share = 0.0;
    EXPECT_NEAR(Tuning(make_tensors(), options).lr_at(0),
                0.5 * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi / 100.0))), 1e-12);
}

TEST(Tuning, ValidatesBeforeAllStepsAndAtEveryQuarter) {
    for (const auto& [n_steps, expected] :
         {std::pair<int64_t, std::vector<int64_t>>{100, {0, 25, 50, 75, 100}},
          {10, {0, 3, 5, 8, 10}},
          {3, {0, 1, 2, 3}},
          {1, {0, 1}}}) {
        Tuning tuning(make_tensors(), options_of(n_steps));
        std::vector<int64_t> steps;
        while (!tuning.finished()) {
            if (tuning.check_due()) {
                steps.push_back(tuning.step_index());
                tuning.check({1.0, 1.0});
            } else {
                tuning.step(Toy().gradients(tuning));
            }
        }
        EXPECT_EQ(steps, expected);
        EXPECT_EQ(tuning.step_index(), n_steps);
    }
}

TEST(Tuning, KeepsTheStateOfTheBestValidation) {
    Tuning tuning(make_tensors(), options_of(4));
    std::vector<float> at_two;
    for (const double loss : {1.0, 0.9, 0.7, 0.71, 0.7}) {
        // Chunks that scatter, so that nothing but the mean is clear.
        tuning.check({loss, loss + 0.5 * static_cast<double>(tuning.step_index() % 2)});
        if (tuning.step_index() == 2) at_two = tuning.values(0);
        if (!tuning.finished()) tuning.step(Toy().gradients(tuning));
    }
    ASSERT_TRUE(tuning.finished());
    EXPECT_EQ(tuning.best(), 2u) << "of equals the earlier";
    EXPECT_EQ(tuning.best_values(0), at_two);
    EXPECT_NE(tuning.values(0), at_two);
}

TEST(Tuning, IsAcceptedOnlyBeyondOnePairedStandardError) {
    const auto accepted = [](std::vector<double> before, std::vector<double> after) {
        Tuning tuning(make_tensors(), options_of(1));
        tuning.check(std::move(before));
        tuning.step(Toy().gradients(tuning));
        tuning.check(std::move(after));
        return tuning.accepted();
    };
    // Chunks differ much among each other, but all fall alike.
    EXPECT_TRUE(accepted({1.0, 3.0, 9.0}, {0.9, 2.89, 8.91}));
    // Means fall by 0.1, with a standard error of 0.2.
    EXPECT_FALSE(accepted({1.0, 1.0, 1.0}, {0.5, 1.0, 1.2}));
    EXPECT_FALSE(accepted({1.0, 1.0}, {1.0, 1.0}));
    EXPECT_FALSE(accepted({1.0, 1.0}, {1.5, 1.6}));
    EXPECT_FALSE(accepted({1.0}, {0.5})) << "one chunk says nothing about the error";
}

TEST(Tuning, StopsWhenValidationGetsClearlyWorseOrIsNotFinite) {
    for (const std::vector<double>& bad :
         {std::vector<double>{1.1, 2.1, 3.12}, {1.0, NAN, 3.0}, {1.0, INFINITY, 3.0}}) {
        Tuning tuning(make_tensors(), options_of(100));
        tuning.check({1.0, 2.0, 3.0});
        while (!tuning.check_due()) tuning.step(Toy().gradients(tuning));
        tuning.check(bad);
        EXPECT_TRUE(tuning.finished());
        EXPECT_EQ(tuning.step_index(), 25);
        EXPECT_FALSE(tuning.accepted());
        EXPECT_EQ(tuning.best_values(0), make_tensors()[0].source);
    }
    Tuning tuning(make_tensors(), options_of(100));
    tuning.check({1.0, 2.0, 3.0});
    while (!tuning.check_due()) tuning.step(Toy().gradients(tuning));
    tuning.check({1.2, 1.95, 2.9});  // worse in the mean, but within the noise
    EXPECT_FALSE(tuning.finished());
}

TEST(Tuning, LeavesOutStepsThatAreNotFinite) {
    Tuning tuning(make_tensors(), options_of(10)), untouched(make_tensors(), options_of(10));
    skip_checks(tuning);
    Rows bad = Toy().gradients(tuning);
    bad[1][2] = NAN;
    EXPECT_FALSE(tuning.step(bad));
    EXPECT_EQ(tuning.step_index(), 1);
    EXPECT_EQ(tuning.values(0), untouched.values(0)) << "the good tensor must not move either";
    EXPECT_TRUE(tuning.step(Toy().gradients(tuning)));
    EXPECT_NE(tuning.values(0), untouched.values(0));
}

/// Runs to the end, or until `until` steps; losses depend on the bits of the values.
void run(Tuning& tuning, int64_t until) {
    while (!tuning.finished() && (tuning.check_due() || tuning.step_index() < until)) {
        if (tuning.check_due()) {
            const double loss = Toy().loss(Toy().values(tuning));
            tuning.check({loss, loss * 1.5, loss / 3.0});
        } else {
            tuning.step(Toy().gradients(tuning));
        }
    }
}

TEST(Tuning, ResumedContinuesBitIdentically) {
    Tuning whole(make_tensors(), options_of(20));
    run(whole, 20);
    ASSERT_TRUE(whole.accepted());
    for (const int64_t killed_at : {0, 1, 5, 13, 20}) {
        Tuning part(make_tensors(), options_of(20));
        run(part, killed_at);
        Tuning resumed(make_tensors(), options_of(20));
        resumed.restore(part.serialize());
        EXPECT_EQ(resumed.serialize(), part.serialize());
        run(resumed, 20);
        EXPECT_EQ(resumed.serialize(), whole.serialize()) << killed_at;
        EXPECT_EQ(resumed.best_values(0), whole.best_values(0));
    }
    Tuning fresh(make_tensors(), options_of(20));
    fresh.restore(Tuning(make_tensors(), options_of(20)).serialize());
    EXPECT_TRUE(fresh.check_due());
}

TEST(Tuning, RefusesDamagedStates) {
    Tuning tuning(make_tensors(), options_of(20));
    run(tuning, 7);
    const std::string good = tuning.serialize();
    const auto with = [&](size_t index, double value) {
        std::string bytes = good;
        bytes.replace(index * sizeof(double), sizeof(double), reinterpret_cast<const char*>(&value),
                      sizeof(double));
        return bytes;
    };
    Tuning other(make_tensors(), options_of(20));
    const std::string before = other.serialize();
    for (const std::string& bad :
         {std::string(), std::string("x"), good.substr(0, good.size() - 8),
          good.substr(0, good.size() - 3), good + std::string(8, '\0'), with(0, 21.0), with(0, 6.5),
          with(1, 8.0), with(3, 9.0), with(4, 1e8), with(5, 1e18), with(6, 8.0), with(12, NAN),
          with(good.size() / 8 - 8, -1.0)}) {
        EXPECT_ERROR(other.restore(bad), ErrorKind::bad_file);
        EXPECT_EQ(other.serialize(), before) << "a refused state must change nothing";
    }
    EXPECT_NO_THROW(other.restore(good));
}

TEST(Tuning, RefusesWhatItCannotWorkWith) {
    EXPECT_ERROR(Tuning({{"a", TuningForm::added, {1.0F, NAN}}}, {}), ErrorKind::usage);
    for (const auto change : std::initializer_list<void (*)(TuningOptions&)>{
             [](TuningOptions& o) { o.n_steps = 0; }, [](TuningOptions& o) { o.lr = -1; },
             [](TuningOptions& o) { o.lr = NAN; }, [](TuningOptions& o) { o.lr_end_ratio = 2; },
             [](TuningOptions& o) { o.warmup_share = -0.1; }, [](TuningOptions& o) { o.beta1 = 1; },
             [](TuningOptions& o) { o.beta2 = 1; }, [](TuningOptions& o) { o.epsilon = 0; },
             [](TuningOptions& o) { o.n_checks = 0; }}) {
        TuningOptions options;
        change(options);
        EXPECT_ERROR(validate(options), ErrorKind::usage);
    }
    Tuning tuning(make_tensors(), options_of(1));
    EXPECT_ERROR(tuning.check({NAN}), ErrorKind::usage);
    tuning.check({1.0, 2.0});
    tuning.step(Toy().gradients(tuning));
    EXPECT_ERROR(tuning.check({1.0}), ErrorKind::usage);
}

}  // namespace
}  // namespace voodoo::search
