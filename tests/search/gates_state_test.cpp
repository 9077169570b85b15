// Saving and resuming the gates.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "expect_error.h"
#include "search/gates.h"

namespace voodoo::search {
namespace {

std::vector<GateTensor> make_tensors() {
    return {{"a.weight", {"Q2_K", "Q4_K", "Q8_0"}, {263.1, 450.7, 850.0}},
            {"b.weight", {"Q4_0", "Q8_0"}, {450.0, 850.0}}};
}

Gates make_gates() {
    GateOptions options;
    options.n_steps = 40;
    return Gates(make_tensors(), 33.0, 900.0, options);
}

/// Contractions that depend on the gates' bits, as the engine's would.
std::vector<std::vector<double>> contractions(const Gates& gates, Random& random) {
    std::vector<std::vector<double>> out;
    for (size_t t = 0; t < gates.tensors().size(); ++t) {
        out.emplace_back();
        for (const double p : gates.probabilities(t)) {
            out.back().push_back(random.normal() * (1.0 + p) / 3.0);
        }
    }
    return out;
}

TEST(GatesState, ResumedRunContinuesBitIdentically) {
    for (const int killed_at : {0, 1, 17, 40}) {
        Random random_a(1, "run"), random_b(1, "run");
        Gates whole = make_gates(), part = make_gates();
        whole.init_at_target();
        part.init_at_target();
        for (int s = 0; s < killed_at; ++s) {
            part.step(contractions(part, random_b), {1.0 / 3.0, 0.1 * s});
        }
        Gates resumed = Gates::deserialize(part.serialize());
        for (int s = killed_at; s < 40; ++s) {
            resumed.step(contractions(resumed, random_b), {1.0 / 3.0, 0.1 * s});
        }
        for (int s = 0; s < 40; ++s) {
            whole.step(contractions(whole, random_a), {1.0 / 3.0, 0.1 * s});
        }
        EXPECT_EQ(resumed.serialize(), whole.serialize()) << killed_at;
        EXPECT_EQ(resumed.scores(GateScore::first_order), whole.scores(GateScore::first_order));
        EXPECT_EQ(resumed.history().size(), 40u);
    }
}

TEST(GatesState, KeepsRecordsOfStepsThatWereNotApplied) {
    Gates gates = make_gates();
    gates.step(std::vector<std::vector<double>>{{1.0, 2.0, std::nan("")}, {1.0, 2.0}},
               {std::nan(""), 1.0});
    const Gates read = Gates::deserialize(gates.serialize());
    ASSERT_EQ(read.history().size(), 1u);
    EXPECT_FALSE(read.history()[0].applied);
    EXPECT_TRUE(std::isnan(read.history()[0].loss.ce));
    EXPECT_EQ(read.history()[0].loss.kl, 1.0);
    EXPECT_EQ(read.serialize(), gates.serialize());
}

TEST(GatesState, KeepsEveryOption) {
    GateOptions options;
    options.lambda_kl = 2.5;
    options.tau_schedule = Schedule::linear;
    options.logit_range = 77.0;
    options.n_steps = 7;
    options.score_decay = 0.5;
    const Gates read = Gates::deserialize(Gates(make_tensors(), 1.0, 2.0, options).serialize());
    EXPECT_EQ(read.options().lambda_kl, 2.5);
    EXPECT_EQ(read.options().tau_schedule, Schedule::linear);
    EXPECT_EQ(read.options().logit_range, 77.0);
    EXPECT_EQ(read.options().n_steps, 7);
    EXPECT_EQ(read.options().score_decay, 0.5);
}

TEST(GatesState, RefusesDamagedFiles) {
    Gates gates = make_gates();
    gates.step(std::vector<std::vector<double>>{{1.0, 2.0, 3.0}, {1.0, 2.0}}, {});
    const std::string good = gates.serialize();
    const auto refuse = [](const std::string& text) {
        EXPECT_ERROR(Gates::deserialize(text), ErrorKind::bad_file);
    };
    const auto replaced = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        const size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return text.replace(at, from.size(), to);
    };
    refuse("");
    refuse("{}");
    refuse("[1]");
    refuse(std::string(100'000, '['));
    refuse(good.substr(0, good.size() - 10));
    refuse(replaced("voodoo.gates", "voodoo.plan"));
    refuse(replaced("\"version\":2", "\"version\":9"));
    refuse(replaced("\"step\":1", "\"step\":2"));
    refuse(replaced("\"n_applied\":1", "\"n_applied\":-1"));
    refuse(replaced("\"exponential\"", "\"sudden\""));
    refuse(replaced("\"tau_end\":0.1", "\"tau_end\":-0.1"));
    refuse(replaced("\"gates\":[[", "\"gates\":[[0.0,"));
    refuse(replaced("\"second\":[[", "\"second\":[[-"));
    refuse(replaced("[263.1", "[\"x\""));
}

}  // namespace
}  // namespace voodoo::search
