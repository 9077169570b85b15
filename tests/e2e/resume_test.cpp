// A run that was interrupted or killed leaves nothing half-written, continues where it was, and
// ends with the same bytes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/files.h"
#include "e2e/e2e_run.h"
#include "pipeline/settings_toml.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class InterruptedRun : public ::testing::Test {
protected:
    void SetUp() override {
        write_source(folder / "model.gguf");
        settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
        settings.types = {"Q2_K", "Q4_0", "Q4_K", "Q6_K", "Q8_0"};
        settings.text.clear();  // the teacher's own text, so that generation is interrupted too
        settings.size_bytes = size_between(settings, 0.4);
        reference = settings;
        reference.output = folder / "reference.gguf";
    }

    /// Either there is no output or it is the whole one, and nothing else lies beside it.
    void expect_nothing_partial() {
        for (const std::string& name : files_beginning(folder / "", "out.gguf")) {
            EXPECT_EQ(name, "out.gguf") << "left behind";
        }
    }

    /// Interrupts at the beginning of each stage and at its first progress, then lets it finish.
    /// expected: stages that there must be; kept: those that the last run must not do again.
    void continues_in_every_stage(const std::vector<const char*>& expected,
                                  const std::vector<const char*>& kept);

    /// Kills itself at events all over the run, going on each time.
    void continues_after_kills();

    /// The default stages, small.
    void use_second_order() {
        for (pipeline::Settings* s : {&settings, &reference}) {
            s->layout = pipeline::LayoutMethod::second_order;
            s->feedback = true;
            s->feedback_tokens = 256;
            s->tune = pipeline::TuneMethod::scales;
            s->tuning.n_steps = 3;
        }
    }

    const TempFolder folder;
    pipeline::Settings settings;
    pipeline::Settings reference;
};

/// Runs until `stage` reports `event` for the `nth` time and asks for the end there; returns
/// whether it was interrupted.
bool run_until(const pipeline::Settings& settings, const std::string& stage,
               const std::string& event, int nth = 1) {
    Cancellation cancellation;
    RecordingObserver observer;
    observer.on_event = [&](const std::string& at, const char* what) {
        if (at == stage && event == what && --nth == 0) cancellation.request();
    };
    try {
        pipeline::run_quantize(settings, observer, cancellation);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::interrupted) << error.what();
        return true;
    }
    return false;
}

void InterruptedRun::continues_in_every_stage(const std::vector<const char*>& expected,
                                              const std::vector<const char*>& kept) {
    RecordingObserver observer;
    std::set<std::string>
        reporting;  // stages with progress; in the others nothing can be asked for
    observer.on_event = [&](const std::string& stage, const char* event) {
        if (std::string(event) == "progress") reporting.insert(stage);
    };
    settings.compare = reference.compare = true;
    quantize(reference, observer);
    std::vector<std::string> stages;  // in the order in which they begin
    for (const std::string& stage : observer.begun()) {
        if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
    }
    const std::set<std::string> known(stages.begin(), stages.end());
    for (const char* stage : expected) ASSERT_EQ(known.count(stage), 1u) << "no stage " << stage;
    for (const std::string& stage : stages) {
        for (const char* event : {"begin", "progress"}) {
            SCOPED_TRACE(stage + " " + event);
            if (std::string(event) == "progress" && reporting.count(stage) == 0) continue;
            const bool interrupted = run_until(settings, stage, event);
            if (std::string(event) == "begin") {
                EXPECT_TRUE(interrupted) << "it ran to its end";
            }
            expect_nothing_partial();
            if (interrupted) {
                EXPECT_FALSE(fs::exists(settings.output));
            }
            fs::remove(settings.output);
        }
    }
    const pipeline::QuantizeResult result = quantize(settings);
    std::set<std::string> cached;
    for (const pipeline::StageResult& stage : result.stages) {
        if (stage.from_cache) cached.insert(stage.stage);
    }
    for (const char* stage : kept) EXPECT_EQ(cached.count(stage), 1u) << stage << " was done again";
    EXPECT_EQ(read_file(settings.output), read_file(reference.output));
}

TEST_F(InterruptedRun, ContinuesInEveryStageAndGivesTheSameFile) {
    continues_in_every_stage(
        {"tokens", "states", "types", "candidates", "train", "select", "export"},
        {"tokens", "states", "types", "train"});
}

TEST_F(InterruptedRun, ContinuesInEveryStageOfTheSecondOrderLayoutWithFeedback) {
    use_second_order();
    continues_in_every_stage(
        {"tokens", "states", "types", "score", "select", "feedback", "tune", "export"},
        {"tokens", "states", "types", "score", "feedback", "tune"});
}

TEST_F(InterruptedRun, KeepsTheTensorsThatErrorFeedbackHasEncoded) {
    use_second_order();
    quantize(reference);
    ASSERT_TRUE(run_until(settings, "feedback", "progress", 3));
    RecordingObserver observer;
    quantize(settings, observer);
    EXPECT_NE(observer.log_text().find("3 of these tensors were encoded before"), std::string::npos)
        << observer.log_text();
    EXPECT_EQ(read_file(settings.output), read_file(reference.output));
}

/// Runs the helper program on the settings; kill_at: the event at which it kills itself, or -1.
/// Returns the wait status.
int run_child(const fs::path& toml, const fs::path& events, int kill_at, int delay_us) {
    const std::string at = std::to_string(kill_at);
    const std::string delay = std::to_string(delay_us);
    const pid_t child = ::fork();
    if (child == 0) {
        ::execl(VOODOO_E2E_CHILD, VOODOO_E2E_CHILD, toml.c_str(), events.c_str(), at.c_str(),
                delay.c_str(), nullptr);
        ::_exit(99);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
}

void InterruptedRun::continues_after_kills() {
    const fs::path toml = folder / "run.toml";
    const fs::path events = folder / "events.txt";
    write_file_atomic(toml, pipeline::settings_to_toml(reference));
    ASSERT_EQ(run_child(toml, events, -1, 0), 0);
    const int n_events = std::stoi(read_file(events));
    ASSERT_GT(n_events, 20);
    const std::string expected = read_file(reference.output);

    write_file_atomic(toml, pipeline::settings_to_toml(settings));
    int n_killed = 0;
    for (int i = 0; i < 8; ++i) {
        // Events are fewer in a run that continues, so the later ones may not come: that run ends.
        const int at = 1 + i * n_events / 9;
        const int status = run_child(toml, events, at, 700 * (i % 3));
        if (WIFSIGNALED(status)) {
            EXPECT_EQ(WTERMSIG(status), SIGKILL);
            ++n_killed;
        } else {
            EXPECT_EQ(status, 0);
        }
        if (fs::exists(settings.output)) {
            EXPECT_EQ(read_file(settings.output), expected) << "a partial file at event " << at;
            fs::remove(settings.output);
        }
    }
    EXPECT_GE(n_killed, 4) << "hardly any run was killed";
    ASSERT_EQ(run_child(toml, events, -1, 0), 0);
    EXPECT_EQ(read_file(settings.output), expected);
}

TEST_F(InterruptedRun, ContinuesAfterAKillAtAnyMomentAndGivesTheSameFile) {
    continues_after_kills();
}

TEST_F(InterruptedRun, DoesSoWithTheSecondOrderLayoutFeedbackAndTuning) {
    use_second_order();
    continues_after_kills();
}

TEST_F(InterruptedRun, RepairsDamagedFilesOfTheRunDirectory) {
    quantize(settings);
    const std::string expected = read_file(settings.output);
    const fs::path run = folder / "out.gguf.run";
    for (const char* name : {"tokens.i32", "states.f32", "imatrix.gguf", "gates.json",
                             "types.stage.json", "train.stage.json"}) {
        SCOPED_TRACE(name);
        const std::string whole = read_file(run / name);
        write_file_atomic(run / name, std::string_view(whole).substr(0, whole.size() / 2));
        fs::remove(settings.output);
        EXPECT_NO_THROW(quantize(settings));
        if (fs::exists(settings.output)) {
            EXPECT_EQ(read_file(settings.output), expected);
        }
        write_file_atomic(run / name, whole);
    }
}

TEST_F(InterruptedRun, IsRefusedWhileAnotherOneWorksInTheSameDirectory) {
    RecordingObserver observer;
    bool refused = false;
    observer.on_event = [&](const std::string& stage, const char*) {
        if (stage != "types" || refused) return;
        try {
            quantize(settings);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::io) << error.what();
            refused = true;
        }
    };
    quantize(settings, observer);
    EXPECT_TRUE(refused);
}

TEST_F(InterruptedRun, IsNotTakenForOneWithOtherSettings) {
    quantize(settings);
    const auto cached = [&](const pipeline::Settings& changed) {
        std::set<std::string> stages;
        for (const pipeline::StageResult& stage : quantize(changed).stages) {
            if (stage.from_cache) stages.insert(stage.stage);
        }
        return stages;
    };
    EXPECT_EQ(cached(settings), (std::set<std::string>{"tokens", "states", "types", "train"}));
    pipeline::Settings other = settings;
    other.gates.lr = 0.05;
    EXPECT_EQ(cached(other), (std::set<std::string>{"tokens", "states", "types"}));
    other = settings;
    other.size_bytes = *settings.size_bytes + 60000;
    EXPECT_EQ(cached(other).count("train"), 0u);
    other = settings;
    other.n_tokens = 256;
    EXPECT_EQ(cached(other).count("states"), 0u);
    other = settings;
    other.seed = 2;
    EXPECT_TRUE(cached(other).empty());
}

}  // namespace
}  // namespace voodoo::e2e
