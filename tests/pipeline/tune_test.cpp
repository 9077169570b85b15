// Scale tuning on the trained tiny model: the KL of text that it never saw falls, a killed run ends
// with the same bits, and what should stay untouched does.
#include "pipeline/tune.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "gguf/writer.h"
#include "model/tiny_model.h"

namespace voodoo::pipeline {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = VOODOO_MODELS;

/// The tiny model with biases on some of its matrices.
void write_model_with_biases(const fs::path& path) {
    const gguf::File file = gguf::File::open(kModels / "tiny-llama.gguf");
    std::vector<gguf::PlannedTensor> planned = gguf::planned_tensors(file.tensors());
    std::map<std::string, std::vector<float>> biases;
    Random random(7, "biases");
    for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
        const std::string matrix = fmt::format("blk.0.{}", part);
        const int64_t n = file.find_tensor(matrix + ".weight")->ne[1];
        std::vector<float>& values = biases[matrix + ".bias"];
        for (int64_t i = 0; i < n; ++i)
            values.push_back(static_cast<float>(0.05 * random.normal()));
        // No scale to move by: must be left out.
        if (std::string(part) == "attn_k") std::fill(values.begin(), values.end(), 0.0F);
        planned.push_back({matrix + ".bias", GGML_TYPE_F32, {n, 1, 1, 1}});
    }
    gguf::Writer writer(path, file.metadata(), planned);
    for (const gguf::PlannedTensor& tensor : planned) {
        const auto bias = biases.find(tensor.name);
        writer.write_tensor(tensor.name, bias == biases.end()
                                             ? file.data(*file.find_tensor(tensor.name))
                                             : std::as_bytes(std::span(bias->second)));
    }
    writer.commit();
}

Settings settings_for(const fs::path& model, const char* text) {
    Settings settings;
    settings.model = model;
    settings.text = {kModels / text};
    settings.bpw = 4;
    settings.chunk_len = 128;
    settings.tokens_per_step = 256;
    settings.n_tokens = 6144;
    settings.n_valid_tokens = 2048;
    settings.tune_tokens_per_step = 256;
    settings.tuning.lr = 5e-3;
    settings.n_threads = 2;
    return settings;
}

/// A run up to the tuning: every tensor in one type.
struct EncodedRun {
    EncodedRun(const Settings& settings, const fs::path& folder, ggml_type type = GGML_TYPE_Q2_K,
               Observer& o = null_observer())
        : observer(o),
          bench(settings, observer),
          run(folder),
          calibration(prepare_calibration(bench, run, results, observer, cancellation)),
          candidates(bench, calibration, run.file("candidates"), observer, cancellation),
          teacher(bench, calibration) {
        weights = candidates.plain(std::vector<ggml_type>(bench.tensors().size(), type));
    }
    TuneResult tune() {
        return tune_scales(bench, calibration, weights, teacher, run, results, observer,
                           cancellation);
    }
    /// Mean KL of `final` on this run's validation text.
    double kl(const FinalWeights& final) {
        Validator validator(bench, calibration, teacher);
        const std::vector<float> kl = validator.token_kl(final, cancellation);
        return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
    }

    Observer& observer;
    Cancellation cancellation;
    std::vector<StageResult> results;
    Workbench bench;
    RunDir run;
    Calibration calibration;
    Candidates candidates;
    Teacher teacher;
    FinalWeights weights;
};

/// Asks for the end at the n-th progress of the stage, and keeps the log.
class StoppingObserver : public Observer {
public:
    int stop_at = -1;
    Cancellation* cancellation = nullptr;
    std::string text;

    void stage_progress(std::string_view stage, double, std::string_view) override {
        if (stage == "tune" && ++n_ == stop_at) cancellation->request();
    }
    void log(LogLevel, std::string_view message) override { text += std::string(message) + "\n"; }
    int steps() const { return n_; }

private:
    int n_ = 0;
};

class ScaleTuning : public ::testing::Test {
protected:
    const voodoo::testing::TempFolder folder;
    Settings settings = settings_for(kModels / "tiny-llama.gguf", "tiny-train.txt");
};

TEST_F(ScaleTuning, LowersTheKlOfTextThatItNeverSaw) {
    EncodedRun run(settings, folder / "run");
    const TuneResult result = run.tune();
    ASSERT_TRUE(result.applied);
    EXPECT_EQ(result.n_tensors, run.weights.tuned.size());
    EXPECT_GT(result.n_steps, 0);
    EXPECT_EQ(run.results.back().stage, "tune");
    FinalWeights untuned = run.weights;
    untuned.tuned.clear();
    // The same figures by the validator, whose batches are cut in another way.
    EXPECT_NEAR(run.kl(untuned), result.validation.mean_b, 1e-4 * result.validation.mean_b);
    EXPECT_NEAR(run.kl(run.weights), result.validation.mean_a, 1e-4 * result.validation.mean_a);

    EncodedRun other(settings_for(settings.model, "tiny-valid.txt"), folder / "other");
    const double before = other.kl(untuned);
    const double after = other.kl(run.weights);
    EXPECT_LT(after, 0.95 * before);
    for (const auto& [name, values] : run.weights.tuned) {
        const gguf::TensorInfo& tensor = *run.bench.file().find_tensor(name);
        EXPECT_EQ(tensor.type, GGML_TYPE_F32) << name;
        EXPECT_LT(run.bench.find_tensor(name), 0) << name << " is quantized";
        ASSERT_EQ(static_cast<int64_t>(values.size()), tensor.n_elements()) << name;
    }
}

TEST_F(ScaleTuning, EndsWithTheSameBitsWhereverItWasInterrupted) {
    EncodedRun whole(settings, folder / "whole");
    ASSERT_TRUE(whole.tune().applied);
    for (const int stop_at : {1, 7, 13}) {
        const fs::path path = folder / fmt::format("part{}", stop_at);
        StoppingObserver observer;
        {
            EncodedRun part(settings, path, GGML_TYPE_Q2_K, observer);
            observer.stop_at = stop_at;
            observer.cancellation = &part.cancellation;
            EXPECT_THROW(part.tune(), Error);
            EXPECT_TRUE(part.weights.tuned.empty());
        }
        StoppingObserver rest;
        EncodedRun part(settings, path, GGML_TYPE_Q2_K, rest);
        ASSERT_TRUE(part.tune().applied);
        EXPECT_EQ(part.weights.tuned, whole.weights.tuned) << stop_at;
        if (stop_at > 5) {
            EXPECT_LT(rest.steps(), 24 - 4) << "it began again";
        }
        // A third call takes the result as it is.
        part.weights.tuned.clear();
        ASSERT_TRUE(part.tune().applied);
        EXPECT_TRUE(part.results.back().from_cache);
        EXPECT_EQ(part.weights.tuned, whole.weights.tuned);
    }
}

TEST_F(ScaleTuning, StartsAfreshForOtherEncodedTensors) {
    EncodedRun run(settings, folder / "run");
    ASSERT_TRUE(run.tune().applied);
    const auto first = run.weights.tuned;
    run.weights.tuned.clear();
    run.weights.tensors[0] = run.candidates.encoded(0, GGML_TYPE_Q3_K);
    run.tune();
    EXPECT_FALSE(run.results.back().from_cache);
    EXPECT_NE(run.weights.tuned, first);
}

TEST_F(ScaleTuning, LeavesEverythingUntouchedIfNoneIsAskedFor) {
    settings.tune = TuneMethod::none;
    EncodedRun run(settings, folder / "run");
    const size_t n_stages = run.results.size();
    EXPECT_FALSE(run.tune().applied);
    EXPECT_TRUE(run.weights.tuned.empty());
    EXPECT_EQ(run.results.size(), n_stages);
    EXPECT_FALSE(fs::exists(run.run.file("tuning.bin")));
}

TEST_F(ScaleTuning, LeavesTheNormsAloneWhereItDoesNotPay) {
    settings.tuning.lr = 0.3;  // far too much
    StoppingObserver observer;
    EncodedRun run(settings, folder / "run", GGML_TYPE_Q8_0, observer);
    const TuneResult result = run.tune();
    EXPECT_FALSE(result.applied);
    EXPECT_TRUE(run.weights.tuned.empty());
    EXPECT_NE(observer.text.find("stay as they were"), std::string::npos) << observer.text;
}

TEST_F(ScaleTuning, TunesBiasesAndSkipsThoseThatAreZero) {
    const fs::path path = folder / "biased.gguf";
    write_model_with_biases(path);
    settings.model = path;
    EncodedRun run(settings, folder / "run");
    std::map<std::string, search::TuningForm> forms;
    for (const search::TuningTensor& tensor :
         tunable_tensors(run.bench, run.weights, run.bench.capture(1, 128, false), run.observer))
        forms.emplace(tensor.name, tensor.form);
    EXPECT_EQ(forms.at("blk.0.attn_q.bias"), search::TuningForm::added);
    EXPECT_EQ(forms.at("blk.0.attn_output.bias"), search::TuningForm::added);
    EXPECT_EQ(forms.at("blk.0.attn_norm.weight"), search::TuningForm::multiplied);
    EXPECT_EQ(forms.at("output_norm.weight"), search::TuningForm::multiplied);
    EXPECT_FALSE(forms.contains("blk.0.attn_k.bias"));
    ASSERT_TRUE(run.tune().applied);
    for (const char* name : {"blk.0.attn_q.bias", "blk.0.attn_v.bias", "blk.0.attn_norm.weight"}) {
        const auto bytes = run.bench.file().data(*run.bench.file().find_tensor(name));
        const std::vector<float>& tuned = run.weights.tuned.at(name);
        EXPECT_NE(std::memcmp(tuned.data(), bytes.data(), bytes.size()), 0) << name;
    }
    EXPECT_FALSE(run.weights.tuned.contains("blk.0.attn_k.bias"));
}

TEST_F(ScaleTuning, ValidatorSeesEachSetOfWeightsAndNotTheOneBefore) {
    EncodedRun run(settings, folder / "run");
    Validator validator(run.bench, run.calibration, run.teacher);
    const auto kl = [&](ggml_type type) {
        return validator.token_kl(
            run.candidates.plain(std::vector<ggml_type>(run.bench.tensors().size(), type)),
            run.cancellation);
    };
    const std::vector<float> coarse = kl(GGML_TYPE_Q2_K), fine = kl(GGML_TYPE_Q8_0);
    EXPECT_GT(std::accumulate(coarse.begin(), coarse.end(), 0.0),
              2.0 * std::accumulate(fine.begin(), fine.end(), 0.0));
    EXPECT_EQ(kl(GGML_TYPE_Q2_K), coarse);
}

}  // namespace
}  // namespace voodoo::pipeline
