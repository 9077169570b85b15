#include "cli/parse.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "pipeline/settings_toml.h"
#include "text_checks.h"

namespace voodoo::cli {
namespace {

using Arguments = std::vector<std::string>;
using Names = std::vector<std::string>;
using Paths = std::vector<std::filesystem::path>;
using Pairs = std::vector<std::pair<std::string, std::string>>;

Invocation parsed(const Arguments& arguments, const Environment& environment = {}) {
    return parse(arguments, environment);
}

/// Message and hint with which arguments are refused.
std::string refusal(const Arguments& arguments) {
    try {
        parsed(arguments);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    ADD_FAILURE() << "accepted";
    return {};
}

/// quantize with all it needs, and more.
Arguments quantize(const Arguments& more) {
    Arguments arguments = {"quantize", "m.gguf", "--size", "95MB", "-o", "out.gguf"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

/// A file in a folder of its own, gone with the object.
class TemporaryFile {
public:
    TemporaryFile(const std::string& name, std::string_view text)
        : folder_(std::filesystem::temp_directory_path() /
                  ("voodoo-cli-" + std::to_string(::getpid()) + "-" + std::to_string(++count_))) {
        std::filesystem::create_directories(folder_);
        write_file_atomic(folder_ / name, text);
        path_ = folder_ / name;
    }
    ~TemporaryFile() { std::filesystem::remove_all(folder_); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    std::string path() const { return path_.string(); }
    std::string folder() const { return folder_.string(); }

private:
    static inline int count_ = 0;
    std::filesystem::path folder_, path_;
};

TEST(Parse, TakesTheMainCommand) {
    const Invocation i =
        parsed(quantize({"--text", "a.txt", "b.txt", "--compare", "off", "--json"}));
    EXPECT_EQ(i.command, Command::quantize);
    EXPECT_EQ(i.settings.model, "m.gguf");
    EXPECT_EQ(i.settings.output, "out.gguf");
    EXPECT_EQ(i.settings.size_bytes, 95000000u);
    EXPECT_EQ(i.settings.text, (Paths{"a.txt", "b.txt"}));
    EXPECT_FALSE(i.settings.compare);
    EXPECT_TRUE(i.extras.json);
    EXPECT_EQ(i.settings.run_dir, "out.gguf.run");
}

/// Arguments that are valid for an option.
std::string sample(const pipeline::FieldInfo& field) {
    switch (field.kind) {
        case pipeline::ValueKind::pair_list:
            return "output.weight=Q6_K";
        case pipeline::ValueKind::integer:
            return "7";
        case pipeline::ValueKind::number:
            return "0.75";
        case pipeline::ValueKind::size:
            return "3MiB";
        case pipeline::ValueKind::on_off:
            return "off";
        case pipeline::ValueKind::choice:
            return std::string(field.value.substr(field.value.rfind('|') + 1));
        default:
            return "some_value";
    }
}

TEST(Parse, TakesEverySettingOfEveryCommandInBothSpellings) {
    for (const CommandInfo& info : command_table()) {
        if (info.command == Command::export_plan || info.command == Command::eval) {
            continue;  // they need files or other options; tests of their own follow
        }
        for (const auto& field : pipeline::settings_table()) {
            if (!field.used_by(info.command)) {
                continue;
            }
            for (const char separator : {'-', '_'}) {
                for (const bool joined : {false, true}) {
                    std::string name = "--" + std::string(field.name);
                    std::replace(name.begin() + 2, name.end(), '-', separator);
                    Arguments arguments = {std::string(info.name), "--model", "m.gguf"};
                    if (info.command == Command::quantize) {
                        arguments.insert(arguments.end(), {"-o", "out.gguf"});
                    }
                    const bool is_target = pipeline::section_of(field.key) == "target";
                    const bool needs_target =
                        info.command == Command::quantize || info.command == Command::train;
                    if (needs_target && !is_target) {
                        arguments.insert(arguments.end(), {"--size", "1GB"});
                    }
                    if (joined) {
                        arguments.push_back(name + "=" + sample(field));
                    } else {
                        arguments.insert(arguments.end(), {name, sample(field)});
                    }
                    pipeline::Settings expected;
                    field.assign(expected, {sample(field)});
                    EXPECT_EQ(field.values(parsed(arguments).settings), field.values(expected))
                        << name;
                }
            }
        }
    }
}

TEST(Parse, TakesAliases) {
    EXPECT_EQ(parsed({"data", "--model", "m.gguf", "--output-dir", "d"}).settings.run_dir, "d");
    EXPECT_EQ(parsed({"data", "--model", "m.gguf", "--output_dir", "d"}).settings.run_dir, "d");
    EXPECT_EQ(parsed({"data", "m.gguf"}).settings.run_dir, "m.gguf.run");
    EXPECT_EQ(parsed(quantize({"--output", "other.gguf"})).settings.output, "other.gguf");
}

TEST(Parse, RepeatsListsAndSplitsThemAtCommas) {
    const Invocation i =
        parsed(quantize({"--types", "Q3_K,Q4_K", "--types", "Q6_K", "--tensor", "a=Q4_K",
                         "--tensor", "b=Q6_K", "--keep", "c", "--keep", "d"}));
    EXPECT_EQ(i.settings.types, (Names{"Q3_K", "Q4_K", "Q6_K"}));
    EXPECT_EQ(i.settings.tensor_types, (Pairs{{"a", "Q4_K"}, {"b", "Q6_K"}}));
    EXPECT_EQ(i.settings.keep, (Names{"c", "d"}));
}

TEST(Parse, DoesNotLetRepeatableOptionsTakeTheModel) {
    const Invocation i =
        parsed({"quantize", "--keep", "c", "m.gguf", "--size", "1GB", "-o", "o.gguf"});
    EXPECT_EQ(i.settings.model, "m.gguf");
}

TEST(Parse, RefusesBadValuesNamingEachOption) {
    const std::string what =
        refusal(quantize({"--lr", "fast", "--tokens", "1e3", "--memory", "4 bits", "--compare",
                          "maybe", "--tau_schedule", "cubic", "--tensor", "x", "--seed", "-1"}));
    for (const char* part :
         {"--lr: \"fast\"", "--tokens: \"1e3\"", "--memory: \"4 bits\"", "--compare: \"maybe\"",
          "--tau-schedule: \"cubic\"", "--tensor: \"x\"", "--seed: \"-1\""}) {
        EXPECT_TRUE(contains(what, part));
    }
}

TEST(Parse, NamesTheNearestOptionOfUnknownOnes) {
    const std::string what = refusal(quantize({"--thread", "3", "--xyzzy-qwertz"}));
    EXPECT_TRUE(contains(what, "unknown option --thread, did you mean --threads?"));
    EXPECT_TRUE(contains(what, "unknown option --xyzzy-qwertz"));
}

TEST(Parse, RefusesAnOptionOfAnotherCommand) {
    EXPECT_TRUE(contains(refusal({"doctor", "--size", "1GB"}), "unknown option --size"));
    EXPECT_TRUE(
        contains(refusal(quantize({"--reference", "r.gguf"})), "unknown option --reference"));
}

TEST(Parse, RefusesUnknownAndMissingCommands) {
    EXPECT_TRUE(contains(refusal({"quantise", "m.gguf"}), "did you mean quantize?"));
    EXPECT_TRUE(contains(refusal({}), "no command is given"));
}

TEST(Parse, SaysAllThatIsMissing) {
    const std::string what = refusal({"quantize"});
    EXPECT_TRUE(contains(what, "no model is given; no size is given; no output is given"));
    EXPECT_TRUE(
        contains(refusal({"quantize", "--text", "a.txt", "m.gguf", "--size", "1GB", "-o", "o"}),
                 "name the model first"));
    for (const auto& [option, value] :
         {std::pair{"--bpw", "3"}, {"--preset", "Q4_K_M"}, {"--like", "other.gguf"}}) {
        EXPECT_TRUE(contains(refusal(quantize({option, value})), "more than one of size"))
            << option;
    }
    EXPECT_TRUE(contains(refusal({"quantize", "m.gguf", "--size"}), "--size"));
}

TEST(Parse, TakesATargetOfTheCommandLineForWhateverTargetTheConfigHas) {
    const TemporaryFile config("t.toml", "[target]\npreset = \"IQ3_XS\"\n");
    const std::vector<std::string> arguments = {"quantize", "m.gguf",   "-o",
                                                "o.gguf",   "--config", config.path()};
    EXPECT_EQ(parsed(arguments).settings.preset, "IQ3_XS");
    std::vector<std::string> with_like = arguments;
    with_like.insert(with_like.end(), {"--like", "other.gguf"});
    const pipeline::Settings settings = parsed(with_like).settings;
    EXPECT_EQ(settings.like, "other.gguf");
    EXPECT_TRUE(settings.preset.empty());
    EXPECT_EQ(settings.n_targets(), 1);
}

TEST(Parse, LetsTheCommandLineOverrideEnvironmentAndConfig) {
    const TemporaryFile config(
        "c.toml",
        "[files]\nmodel = \"c.gguf\"\noutput = \"c-out.gguf\"\n[target]\nbpw = 3.5\n"
        "[candidates]\nggml_lib = \"c.so\"\ntypes = [\"Q8_0\"]\n[machine]\nseed = 5\nthreads = "
        "2\n");
    const Invocation plain = parsed({"train", "--config", config.path()});
    EXPECT_EQ(plain.settings.bpw, 3.5);
    EXPECT_EQ(plain.settings.ggml_lib, "c.so");
    EXPECT_EQ(plain.settings.run_dir, "c-out.gguf.run");
    const Arguments more = {"train",   "--config", config.path(), "--size", "1GB",
                            "--types", "Q4_K",     "--seed",      "6"};
    const Invocation mixed = parsed(more, {.ggml_lib = "env.so"});
    EXPECT_EQ(mixed.settings.seed, 6u);
    EXPECT_EQ(mixed.settings.n_threads, 2);
    EXPECT_EQ(mixed.settings.types, (Names{"Q4_K"}));
    EXPECT_EQ(mixed.settings.ggml_lib, "env.so");
    EXPECT_EQ(mixed.settings.size_bytes, 1000000000u);
    EXPECT_FALSE(mixed.settings.bpw)
        << "a size on the command line replaces the file's bits per weight";
    EXPECT_EQ(parsed({"train", "--config", config.path(), "--ggml-lib", "line.so"},
                     {.ggml_lib = "env.so"})
                  .settings.ggml_lib,
              "line.so");
}

TEST(Parse, RefusesAConfigWithErrorsOrWithoutFile) {
    const TemporaryFile config("c.toml", "[target]\nsise = 5\n");
    EXPECT_TRUE(
        contains(refusal({"train", "--config", config.path()}), "did you mean target.size?"));
    try {
        parsed({"train", "--config", config.path() + ".missing"});
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io);
    }
}

TEST(Parse, TakesTheRunsOwnSettingsForExport) {
    pipeline::Settings recorded;
    recorded.model = "recorded.gguf";
    recorded.size_bytes = 5;
    recorded.run_dir = "moved-since";
    const TemporaryFile record("settings.toml", settings_to_toml(recorded));
    const Invocation i =
        parsed({"export", "--run", record.folder(), "-o", "o.gguf", "--plan", "p.json"});
    EXPECT_EQ(i.settings.model, "recorded.gguf");
    EXPECT_EQ(i.settings.size_bytes, 5u);
    EXPECT_EQ(i.settings.run_dir, record.folder());
    EXPECT_EQ(i.extras.plan, "p.json");
    EXPECT_TRUE(contains(refusal({"export", "--run", record.folder()}), "no output"));
    EXPECT_TRUE(contains(refusal({"export", "-o", "o.gguf"}), "--run DIR"));
    EXPECT_TRUE(contains(refusal({"export", "--run", record.folder() + "/none", "-o", "o.gguf"}),
                         "settings.toml"));
}

TEST(Parse, TakesEvalWithSeveralModels) {
    const Invocation i =
        parsed({"eval", "--model", "a.gguf", "b.gguf", "--reference", "r.gguf", "--text", "t.txt",
                "--ctx_size", "256", "--chunks", "-1", "--threads", "2"});
    EXPECT_EQ(i.command, Command::eval);
    EXPECT_EQ(i.extras.models, (Paths{"a.gguf", "b.gguf"}));
    EXPECT_EQ(i.extras.reference, "r.gguf");
    EXPECT_EQ(i.extras.text, "t.txt");
    EXPECT_EQ(i.extras.ctx_size, 256);
    EXPECT_EQ(i.extras.chunks, -1);
    EXPECT_EQ(i.settings.n_threads, 2);
}

TEST(Parse, SaysWhatEvalNeedsATextFor) {
    const std::string what = refusal({"eval", "--model", "a.gguf", "--reference", "r.gguf"});
    EXPECT_TRUE(contains(what, "no text to measure on"));
    EXPECT_TRUE(contains(what, "--text FILE names a UTF-8 text that no model was calibrated on"));
}

TEST(Parse, LetsDoctorDoWithoutModelAndInspectNot) {
    EXPECT_EQ(parsed({"doctor"}).command, Command::doctor);
    EXPECT_EQ(parsed({"doctor", "--model", "m.gguf"}).settings.model, "m.gguf");
    EXPECT_TRUE(contains(refusal({"inspect"}), "no model is given"));
}

TEST(Parse, AnswersHelpAndVersionWithText) {
    EXPECT_TRUE(begins_with(parsed({"--version"}).text, "voodoo "));
    EXPECT_FALSE(parsed({"--version"}).command);
    EXPECT_TRUE(contains(parsed({"--help"}).text, "quantize"));
    EXPECT_TRUE(contains(parsed({"quantize", "--help"}).text, "--max-encode-ns"));
    EXPECT_TRUE(contains(parsed({"help", "eval"}).text, "--reference"));
    EXPECT_TRUE(contains(parsed({"help", "--markdown"}).text, "# Command line"));
    EXPECT_TRUE(contains(refusal({"--print-docs", "nonsense"}), "cli, config or toml"));
}

}  // namespace
}  // namespace voodoo::cli
