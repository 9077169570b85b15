#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "cli/help.h"
#include "pipeline/settings_toml.h"
#include "text_checks.h"

namespace voodoo::cli {
namespace {

void expect_current(const std::string& path, const std::string& document) {
    EXPECT_EQ(read_file(std::filesystem::path(VOODOO_SOURCE_DIR) / path),
              generated_document(document))
        << path << " is stale: write it anew with `voodoo --print-docs " << document << "`";
}

TEST(GeneratedDocuments, AreCurrent) {
    expect_current("docs/cli.md", "cli");
    expect_current("docs/config.md", "config");
    expect_current("configs/default.toml", "toml");
}

TEST(GeneratedDocuments, HaveEveryOption) {
    const std::string cli = generated_document("cli"), config = generated_document("config");
    for (const CommandInfo& info : command_table()) {
        for (const pipeline::FieldInfo* field : options_of(info.command)) {
            EXPECT_TRUE(contains(cli, "--" + std::string(field->name)));
            EXPECT_TRUE(contains(command_help(info.command), "--" + std::string(field->name)));
        }
    }
    for (const auto& field : pipeline::settings_table()) {
        EXPECT_TRUE(contains(config, "`--" + std::string(field.name) + "`"));
    }
}

TEST(ExampleConfig, HasTheDefaults) {
    const pipeline::Settings settings =
        pipeline::settings_from_toml(pipeline::example_toml(), "example");
    EXPECT_EQ(settings_to_toml(settings), settings_to_toml(pipeline::Settings{}));
}

TEST(ExampleConfig, StaysValidWithAllOptionalKeysSwitchedOn) {
    std::istringstream lines(pipeline::example_toml());
    std::string text, line;
    while (std::getline(lines, line)) {
        // "# key = value" becomes "key = value"; comments hold no "=".
        const bool key = line.starts_with("# ") && line.find(" = ") != std::string::npos;
        text += (key ? line.substr(2) : line) + "\n";
    }
    const pipeline::Settings settings = pipeline::settings_from_toml(text, "example");
    EXPECT_EQ(settings.model, "model.gguf");
    EXPECT_TRUE(settings.size_bytes && settings.bpw);
}

TEST(Help, StaysWithinTheTerminal) {
    for (const CommandInfo& info : command_table()) {
        std::istringstream lines(command_help(info.command));
        std::string line;
        while (std::getline(lines, line)) {
            EXPECT_LE(line.size(), 110u) << line;
        }
    }
}

}  // namespace
}  // namespace voodoo::cli
