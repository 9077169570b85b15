// What can't be done is refused at once, with the right kind of error and all that is wrong.
#include <gtest/gtest.h>

#include "base/files.h"
#include "e2e/e2e_run.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class RefusedRun : public ::testing::Test {
protected:
    void SetUp() override {
        write_source(folder / "model.gguf");
        settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
        settings.size_bytes = size_between(settings, 0.4);
    }

    /// The run fails with `kind` and every one of `words` in the message, before any stage began.
    void expect_refused(ErrorKind kind, const std::vector<std::string>& words) {
        RecordingObserver observer;
        try {
            quantize(settings, observer);
            ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
            const std::string message = error.what();
            EXPECT_EQ(to_string(error.kind()), to_string(kind)) << message;
            for (const std::string& word : words)
                EXPECT_NE(message.find(word), std::string::npos)
                    << word << " is not in: " << message;
        }
        EXPECT_TRUE(observer.begun().empty()) << observer.begun().front() << " began";
        EXPECT_TRUE(finished_stages(folder / "out.gguf.run").empty());
        EXPECT_TRUE(files_beginning(folder / "", "out.gguf").empty());
    }

    const TempFolder folder;
    pipeline::Settings settings;
};

TEST_F(RefusedRun, NamesTheAttainableRangeOfSizes) {
    const pipeline::Inspection inspection = pipeline::inspect(settings);
    settings.size_bytes = inspection.min_file_bytes - 1;
    expect_refused(ErrorKind::infeasible_budget, {std::to_string(inspection.min_file_bytes),
                                                  std::to_string(inspection.max_file_bytes)});
}

TEST_F(RefusedRun, WithoutASizeOrWithTwo) {
    settings.size_bytes.reset();
    expect_refused(ErrorKind::usage, {"size"});
    settings.size_bytes = 1000000;
    settings.bpw = 4.0;
    expect_refused(ErrorKind::usage, {"size", "bits per weight"});
}

TEST_F(RefusedRun, NamesAllThatIsWrongWithPinsAtOnce) {
    settings.tensor_types = {{"no.such.weight", "Q4_K"}, {"output.weight", "Q9_Z"}};
    settings.keep = {"neither.weight"};
    settings.types = {"Q4_K", "Q77"};
    expect_refused(ErrorKind::usage, {"no.such.weight", "Q9_Z", "neither.weight", "Q77"});
}

TEST_F(RefusedRun, NamesAPinnedTypeThatTheRowsDoNotFit) {
    write_source(folder / "model.gguf", {.n_embd = 96});
    settings.types.clear();
    settings.tensor_types = {{"blk.0.attn_q.weight", "Q4_K"}};
    settings.size_bytes = 200000;
    expect_refused(ErrorKind::usage, {"blk.0.attn_q.weight", "Q4_K", "96"});
}

TEST_F(RefusedRun, PinnedToATypeThatNeedsAnImatrixWhichTheEmbeddingCannotHave) {
    // ggml would end the process.
    settings.tensor_types = {{"token_embd.weight", "IQ2_XXS"}};
    expect_refused(ErrorKind::usage, {"token_embd.weight", "IQ2_XXS", "importances"});
}

TEST_F(RefusedRun, WithAModelThatIsQuantizedAlready) {
    testing::run_llama_tool("llama-quantize",
                            {folder / "model.gguf", folder / "q4.gguf", "Q4_K_M", "2"});
    settings.model = folder / "q4.gguf";
    expect_refused(ErrorKind::usage, {"already quantized"});
}

TEST_F(RefusedRun, WithAModelThatIsNotThere) {
    settings.model = folder / "none.gguf";
    expect_refused(ErrorKind::io, {"none.gguf"});
}

TEST_F(RefusedRun, WithAnAdjustedSourceThatOverwritesAFileOrHasNoFolder) {
    const std::string model = read_file(settings.model);
    settings.write_adjusted = settings.model;
    expect_refused(ErrorKind::usage, {"adjusted", "model.gguf"});
    EXPECT_EQ(read_file(settings.model), model);
    settings.write_adjusted =
        folder / "../" / settings.output.parent_path().filename() / "out.gguf";
    expect_refused(ErrorKind::usage, {"adjusted", "output"});
    settings.write_adjusted = folder / "none/adjusted.gguf";
    expect_refused(ErrorKind::usage, {"adjusted", "none"});
    EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST_F(RefusedRun, WithATruncatedModel) {
    const std::string whole = read_file(folder / "model.gguf");
    write_file_atomic(folder / "short.gguf", std::string_view(whole).substr(0, whole.size() - 100));
    settings.model = folder / "short.gguf";
    expect_refused(ErrorKind::bad_file, {"short.gguf"});
    write_file_atomic(folder / "short.gguf", std::string_view(whole).substr(0, 1000));
    expect_refused(ErrorKind::bad_file, {"short.gguf"});
}

TEST_F(RefusedRun, WithATextThatIsTooShort) {
    write_file_atomic(folder / "short.txt", testing::sample_text(200));
    settings.text = {folder / "short.txt"};
    try {
        quantize(settings);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
        EXPECT_NE(std::string(error.what()).find("text"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(finished_stages(folder / "out.gguf.run").empty());
}

TEST_F(RefusedRun, WithATextThatIsNotThere) {
    settings.text = {folder / "none.txt"};
    try {
        quantize(settings);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io) << error.what();
    }
}

TEST_F(RefusedRun, WithAnImatrixOfAnotherModel) {
    write_source(folder / "other.gguf", {.n_embd = 96});
    pipeline::Settings other = quick_settings(folder / "other.gguf", {});
    other.types.clear();
    other.run_dir = folder / "other.run";
    const Cancellation cancellation;
    pipeline::run_data(other, null_observer(), cancellation);
    settings.imatrix = folder / "other.run/imatrix.gguf";
    try {
        quantize(settings);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::bad_file) << error.what();
    }
}

TEST_F(RefusedRun, WithALibraryThatIsNoGgml) {
    settings.ggml_lib = folder / "no-such-lib.so";
    RecordingObserver observer;
    EXPECT_THROW(quantize(settings, observer), Error);
    EXPECT_TRUE(observer.begun().empty());
}

TEST_F(RefusedRun, WithAPlanOfAnotherModel) {
    quantize(settings);
    write_source(folder / "other.gguf", {.n_layer = 2});
    pipeline::Settings other = quick_settings(folder / "other.gguf", folder / "other-out.gguf");
    const Cancellation cancellation;
    EXPECT_THROW(pipeline::run_export(other, folder / "out.gguf.run/plan.json", null_observer(),
                                      cancellation),
                 Error);
    EXPECT_FALSE(fs::exists(folder / "other-out.gguf"));
    // And a run that has no plan yet.
    EXPECT_THROW(pipeline::run_export(other, {}, null_observer(), cancellation), Error);
}

class UnsupportedModel : public RefusedRun {
protected:
    /// Has llama.cpp write its small model of an architecture.
    fs::path small_model(const std::string& architecture, const std::string& kind = "dense") {
        fs::create_directories(folder / "archs");
        testing::run_llama_tool("test-llama-archs", {"-a", architecture, "-o", folder / "archs"});
        return folder / ("archs/" + architecture + "-" + kind + ".gguf");
    }
};

TEST_F(UnsupportedModel, WithSparseAttentionIsRefusedNamingItsOpsAndComputesNothing) {
    settings.model = small_model("glm-dsa", "moe");
    settings.types.clear();
    settings.bpw = 8.0;
    settings.size_bytes.reset();
    expect_refused(ErrorKind::unsupported_op, {"glm-dsa", "LIGHTNING_INDEXER"});
}

TEST_F(UnsupportedModel, OfADiffusionModelIsRefused) {
    settings.model = small_model("dream");
    settings.types.clear();
    settings.bpw = 8.0;
    settings.size_bytes.reset();
    expect_refused(ErrorKind::unsupported_model, {"quantization"});
}

TEST_F(UnsupportedModel, IsWhatDoctorReports) {
    settings.model = small_model("glm-dsa", "moe");
    const pipeline::DoctorReport bad = pipeline::doctor(settings);
    EXPECT_FALSE(bad.ok());
    settings.model = folder / "model.gguf";
    const pipeline::DoctorReport good = pipeline::doctor(settings);
    for (const auto& check : good.checks)
        EXPECT_TRUE(check.ok) << check.name << ": " << check.detail;
    settings.model = folder / "none.gguf";
    EXPECT_FALSE(pipeline::doctor(settings).ok());
}

}  // namespace
}  // namespace voodoo::e2e
