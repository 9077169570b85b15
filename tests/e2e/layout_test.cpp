// The second-order layout on the trained tiny model: what it predicts is what is measured, and it
// is better than what one would choose without it.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "e2e/e2e_run.h"
#include "search/gates.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class SecondOrderLayout : public ::testing::Test {
protected:
    pipeline::Settings settings_at(double bpw) {
        pipeline::Settings settings;
        settings.model = VOODOO_MODELS "/tiny-llama.gguf";
        settings.text = {VOODOO_MODELS "/tiny-train.txt"};
        settings.output = folder / "out.gguf";
        settings.run_dir = folder / "run";
        settings.n_tokens = 8192;
        settings.n_valid_tokens = 4096;
        settings.chunk_len = 256;
        settings.score_chunks = 16;
        settings.score_tolerance = 0.0;
        settings.bpw = bpw;
        settings.feedback = false;
        settings.tune = pipeline::TuneMethod::none;
        settings.n_threads = 2;
        settings.types = {"Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0"};
        return settings;
    }

    const TempFolder folder;
};

TEST_F(SecondOrderLayout, PredictsTheMeasuredDivergence) {
    pipeline::Settings settings = settings_at(5.2);
    const pipeline::QuantizeResult result = quantize(settings);
    const auto score = nlohmann::json::parse(read_file(folder / "run/score.stage.json"));
    for (const auto& tensor : score.at("cost")) {
        for (const auto& cost : tensor) EXPECT_GT(cost.get<double>(), 0.0);
    }
    const search::Plan plan = search::read_plan((folder / "run/plan.json").string());
    ASSERT_EQ(plan.method, "second order");
    const double predicted = plan.scores.at("predicted_kl");
    const double measured = plan.scores.at("validation_kl");
    EXPECT_GT(predicted / measured, 0.6) << predicted << " " << measured;
    EXPECT_LT(predicted / measured, 1.6) << predicted << " " << measured;
}

TEST_F(SecondOrderLayout, BeatsPresetsAndMixesOfTwoTypesAtSeveralSizes) {
    for (const double bpw : {3.6, 4.4, 5.2}) {
        pipeline::Settings settings = settings_at(bpw);
        settings.score_chunks = 8;
        const pipeline::QuantizeResult result = quantize(settings);
        EXPECT_EQ(result.chosen, "second order") << bpw;
        EXPECT_GE(result.measured.size(), 2u) << "nothing to compare with at " << bpw;
        for (size_t i = 1; i < result.measured.size(); ++i) {
            EXPECT_LT(result.measured[0].mean_kl, result.measured[i].mean_kl)
                << bpw << " " << result.measured[i].name;
        }
    }
}

TEST_F(SecondOrderLayout, ScoresOnlyUntilTwoHalvesOfTheTextAgree) {
    pipeline::Settings settings = settings_at(4.4);
    settings.compare = false;
    settings.score_chunks = 30;
    const auto chunks_used = [&] {
        quantize(settings);
        return nlohmann::json::parse(read_file(folder / "run/score.stage.json"))
            .at("n_chunks")
            .get<int>();
    };
    EXPECT_EQ(chunks_used(), 30);
    settings.score_chunks = 29;  // other settings, other record
    settings.score_tolerance = 0.9;
    EXPECT_EQ(chunks_used(), 4);
}

TEST_F(SecondOrderLayout, StartsGatesThatAreAtLeastAsGood) {
    pipeline::Settings settings = settings_at(4.4);
    settings.score_chunks = 8;
    settings.layout = pipeline::LayoutMethod::gates;
    const pipeline::QuantizeResult result = quantize(settings);
    EXPECT_TRUE(result.chosen == "gates" || result.chosen == "second order") << result.chosen;
    const search::Gates gates = search::Gates::deserialize(read_file(folder / "run/gates.json"));
    ASSERT_TRUE(gates.finished());
    EXPECT_GT(gates.history().front().rounding, 0.0);
    EXPECT_LT(gates.history().back().rounding, gates.history().front().rounding)
        << "the gates decide as the temperature falls";
    EXPECT_EQ(gates.options().ce_weight, 0.0);
}

}  // namespace
}  // namespace voodoo::e2e
