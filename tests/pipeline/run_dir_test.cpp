#include "pipeline/run_dir.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/tiny_model.h"

namespace voodoo::pipeline {
namespace {

TEST(RunDirectory, FindsAStageOnlyUnderTheFingerprintThatItWasMadeFrom) {
    const testing::TempFolder folder;
    RunDir run(folder / "a/b");
    EXPECT_FALSE(run.find_stage("states", "x").has_value());
    run.finish_stage("states", "x", {{"n", 3}});
    ASSERT_TRUE(run.find_stage("states", "x").has_value());
    EXPECT_EQ((*run.find_stage("states", "x"))["n"], 3);
    EXPECT_FALSE(run.find_stage("states", "y").has_value());
    EXPECT_FALSE(run.find_stage("types", "x").has_value());
    run.finish_stage("states", "y", {});
    EXPECT_FALSE(run.find_stage("states", "x").has_value());
}

TEST(RunDirectory, TakesARecordThatCannotBeReadForAbsent) {
    const testing::TempFolder folder;
    RunDir run(folder / "run");
    for (const char* text : {"", "{", "[1]", "{\"fingerprint\": 3}", "null"}) {
        write_file_atomic(run.file("states.stage.json"), text);
        EXPECT_NO_THROW(EXPECT_FALSE(run.find_stage("states", "x").has_value())) << text;
    }
}

TEST(RunDirectory, IsForOneProcessAtATime) {
    const testing::TempFolder folder;
    {
        const RunDir run(folder / "run");
        try {
            const RunDir second(folder / "run");
            ADD_FAILURE() << "two at once";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::io);
        }
    }
    EXPECT_NO_THROW(RunDir(folder / "run"));
}

TEST(RunDirectory, ThatCannotBeCreatedIsAnError) {
    const testing::TempFolder folder;
    write_file_atomic(folder / "file", "x");
    EXPECT_THROW(RunDir(folder / "file/run"), Error);
}

}  // namespace
}  // namespace voodoo::pipeline
