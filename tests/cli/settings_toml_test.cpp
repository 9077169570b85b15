#include "pipeline/settings_toml.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "pipeline/settings_table.h"
#include "text_checks.h"

namespace voodoo::pipeline {
namespace {

using cli::contains;

/// What settings_from_toml says about a text that it refuses.
std::string refusal(std::string_view text) {
    try {
        settings_from_toml(text, "x.toml");
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    ADD_FAILURE() << "accepted: " << text;
    return {};
}

/// Settings in which every field differs from its default.
Settings unusual_settings() {
    Settings s;
    s.model = "a \"quoted\"\\model\n.gguf";
    s.output = "out.gguf";
    s.run_dir = "run";
    s.size_bytes = 4509715660;
    s.bpw = 3.1;
    s.text = {"a.txt", "b,c.txt"};
    s.imatrix = "imatrix.dat";
    s.n_tokens = 1;
    s.n_valid_tokens = 2;
    s.chunk_len = 3;
    s.types = {"Q3_K", "IQ4_XS"};
    s.tensor_types = {{"output.weight", "Q6_K"}, {"blk.0.x=y", "Q4_K"}};
    s.keep = {"token_embd.weight"};
    s.max_encode_ns = 0.1;
    s.ggml_lib = "lib.so";
    s.layout = LayoutMethod::gates;
    s.score_chunks = 9;
    s.feedback = false;
    s.feedback_tokens = 1;
    s.write_adjusted = "adjusted.gguf";
    s.score_tolerance = 0.25;
    s.gates.lambda_kl = 0.3;
    s.gates.ce_weight = 1e-9;
    s.gates.tau_start = 2;
    s.gates.tau_end = 0.25;
    s.gates.tau_schedule = search::Schedule::linear;
    s.gates.lr = 1.0 / 3.0;
    s.gates.lr_end_ratio = 0.5;
    s.preset = "IQ3_XS";
    s.like = "other \"file\".gguf";
    s.gates.warmup_share = 0.125;
    s.gates.beta1 = 0.5;
    s.gates.beta2 = 0.75;
    s.gates.epsilon = 1e-5;
    s.gates.penalty_weight = 7;
    s.gates.dead_zone = 0.02;
    s.gates.score_decay = 0.5;
    s.gates.logit_range = 100;
    s.tokens_per_step = 4096;
    s.tune = TuneMethod::none;
    s.tuning.n_steps = 17;
    s.tuning.lr = 0.5;
    s.tune_tokens_per_step = 1024;
    s.compare = false;
    s.split_max_bytes = 1000;
    s.seed = std::numeric_limits<uint64_t>::max();
    s.n_threads = 3;
    s.memory_bytes = 5;
    return s;
}

TEST(SettingsToml, GivesBackEveryFieldExactly) {
    const Settings before = unusual_settings();
    const Settings after = settings_from_toml(settings_to_toml(before), "test");
    for (const Field<Settings>& field : settings_table()) {
        EXPECT_EQ(field.values(after), field.values(before)) << field.key;
        EXPECT_NE(field.values(before), field.default_values) << field.key << " is not tested";
    }
    EXPECT_EQ(after.tensor_types[1].first, "blk.0.x=y");
    EXPECT_EQ(after.gates.lr, 1.0 / 3.0);
}

TEST(SettingsToml, ReadsSizesWithUnitsAndNumbersWithoutPoint) {
    const Settings s =
        settings_from_toml("[target]\nsize = \"95MB\"\nbpw = 3\n[gates]\nlr = 2", "test");
    EXPECT_EQ(s.size_bytes, 95000000u);
    EXPECT_EQ(s.bpw, 3.0);
    EXPECT_EQ(s.gates.lr, 2.0);
}

TEST(SettingsToml, KeepsWhatTheTextDoesNotHave) {
    Settings s;
    s.seed = 9;
    apply_toml(s, "[machine]\nthreads = 2\n", "test");
    EXPECT_EQ(s.seed, 9u);
    EXPECT_EQ(s.n_threads, 2);
}

TEST(SettingsToml, NamesTheNearestKeyOfAnUnknownOne) {
    EXPECT_TRUE(contains(refusal("[gates]\ntau_strat = 1\n"),
                         "line 2: gates.tau_strat: unknown key, did you mean gates.tau_start?"));
    EXPECT_TRUE(contains(refusal("lambda = 1\n"), "did you mean gates.lambda?"));
    EXPECT_TRUE(contains(refusal("[gate]\nlr = 1\n"), "did you mean gates.lr?"));
}

TEST(SettingsToml, ListsAllErrorsAtOnceAndChangesNothing) {
    Settings s;
    try {
        apply_toml(s,
                   "[gates]\nlr = \"fast\"\nlambda = 5\n[data]\ntokens = 1.5\n[machine]\nmemory = "
                   "\"4 bits\"\n"
                   "[outcome]\ncompare = 3\n[candidates]\ntensor = "
                   "[\"output.weight\"]\nxyzzy_unlike_any = 1\n",
                   "x.toml");
        FAIL();
    } catch (const Error& error) {
        const std::string what = error.what();
        for (const char* key :
             {"gates.lr", "data.tokens", "machine.memory", "outcome.compare", "candidates.tensor",
              "candidates.xyzzy_unlike_any: unknown key\n"}) {
            EXPECT_TRUE(contains(what + "\n", key));
        }
        EXPECT_EQ(error.where(), "x.toml");
    }
    EXPECT_EQ(s.gates.lambda_kl, Settings{}.gates.lambda_kl);
}

TEST(SettingsToml, SaysWhereTheTextIsNotToml) {
    EXPECT_TRUE(contains(refusal("[gates]\nlr = = 1\n"), "[x.toml:2]"));
}

TEST(SettingsToml, RefusesNumbersOutOfRange) {
    EXPECT_TRUE(contains(refusal("[data]\nchunk_len = 3000000000\n"), "range"));
    EXPECT_TRUE(contains(refusal("[machine]\nseed = -1\n"), "whole number from 0 on"));
    EXPECT_TRUE(contains(refusal("[machine]\nmemory = -1\n"), "not a size"));
    EXPECT_TRUE(contains(refusal("[gates]\nlr = nan\n"), "not a number"));
}

TEST(SettingsTable, HasUniqueNamesAndKeysGroupedBySection) {
    std::set<std::string_view> names, keys, closed;
    std::string_view section;
    for (const Field<Settings>& field : settings_table()) {
        EXPECT_TRUE(keys.insert(field.key).second) << field.key;
        EXPECT_TRUE(names.insert(field.name).second) << field.name;
        if (section_of(field.key) != section) {
            section = section_of(field.key);
            EXPECT_TRUE(closed.insert(section).second) << section << " is split";
        }
        EXPECT_FALSE(field.help.empty()) << field.key;
        EXPECT_NE(field.commands, 0u) << field.key;
    }
    for (const SettingsSection& known : settings_sections()) {
        EXPECT_EQ(closed.count(known.name), 1u) << known.name;
    }
    EXPECT_EQ(closed.size(), settings_sections().size());
}

TEST(SettingsTable, ExplainsOnlyDefaultsThatAreEmptyOrZero) {
    for (const Field<Settings>& field : settings_table()) {
        const bool nothing = field.default_values.empty() || field.default_values == Values{"0"};
        EXPECT_TRUE(field.default_note.empty() || nothing) << field.key;
        EXPECT_TRUE(!field.example.empty() || !field.default_values.empty()) << field.key;
    }
}

TEST(SettingsTable, ExamplesAreValidValues) {
    for (const Field<Settings>& field : settings_table()) {
        if (!field.example.empty()) {
            const std::string key(field.key.substr(section_of(field.key).size() + 1));
            const Settings s = settings_from_toml("[" + std::string(section_of(field.key)) + "]\n" +
                                                      key + " = " + std::string(field.example),
                                                  "example");
            EXPECT_NE(field.values(s), field.default_values) << field.key;
        }
    }
}

TEST(NearestName, IgnoresWhatIsFarAway) {
    const std::vector<std::string> known = {"threads", "tokens"};
    EXPECT_EQ(nearest_name("thread", known), "threads");
    EXPECT_EQ(nearest_name("tokesn", known), "tokens");
    EXPECT_EQ(nearest_name("xyzzy", known), "");
}

}  // namespace
}  // namespace voodoo::pipeline
