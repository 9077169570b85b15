// The second-order layout on the trained tiny model: what it predicts is what is measured, and it
// is better than what one would choose without it.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "e2e/e2e_run.h"
#include "search/gates.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class SecondOrderLayout : public ::testing::Test {
protected:
    pipeline::Settings settings_at(double bpw) {
        pipeline::Settings settings = trained_settings(folder);
        settings.score_chunks = 16;
        settings.score_tolerance = 0.0;
        settings.bpw = bpw;
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

TEST(SecondOrderPlan, TakesAnotherTypeWhereTheWholeTensorCanNotBeEncoded) {
    // The large weight lies in a row that the sample of rows leaves out. Its block's scale of Q4_0
    // is more than F16 can hold.
    const TempFolder folder;
    pipeline::Settings settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
    settings.layout = pipeline::LayoutMethod::second_order;
    settings.types = {"Q4_0", "Q8_0"};
    const std::string tensor = "blk.0.ffn_gate.weight";
    for (const float outlier : {0.0f, 1e6f}) {
        write_source(settings.model, {.outlier = outlier});
        settings.size_bytes = size_between(settings, 0.3);
        settings.run_dir = folder / ("run" + std::to_string(outlier != 0.0f));
        RecordingObserver observer;
        quantize(settings, observer);
        EXPECT_LE(fs::file_size(settings.output), *settings.size_bytes);
        const bool is_dropped =
            observer.log_text(LogLevel::warn).find(tensor + " can't be Q4_0") != std::string::npos;
        EXPECT_EQ(is_dropped, outlier != 0.0f) << observer.log_text(LogLevel::warn);
        EXPECT_EQ(tensor_types(settings.output).at(tensor),
                  outlier != 0.0f ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0);
    }
    settings.types = {"Q4_0"};
    settings.size_bytes = pipeline::inspect(settings).max_file_bytes;
    settings.run_dir = folder / "run2";
    try {
        quantize(settings);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
        EXPECT_NE(std::string(error.what()).find(tensor), std::string::npos) << error.what();
    }
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
