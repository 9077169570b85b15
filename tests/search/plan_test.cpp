// Plans: JSON both ways, hostile files, hashes, the recipe for llama-quantize.
#include "search/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>

#include "expect_error.h"

namespace voodoo::search {
namespace {

Plan make_plan() {
    Plan plan;
    plan.tensors = {{"token_embd.weight", "Q6_K"},
                    {"blk.0.ffn_down.weight", "Q4_K"},
                    {"blk.1.ffn_down.weight", "IQ3_XXS"}};
    plan.model_id = std::string(64, 'a');
    plan.target_bytes = 95'000'000;
    plan.file_bytes = 94'999'000;
    plan.imatrix_hash = std::string(64, 'b');
    plan.encoder = "libggml-base v0.5.0";
    plan.seed = ~uint64_t{0};
    plan.method = "gates";
    plan.scores = {{"predicted_loss", 0.1}, {"gap", 0.0}};
    return plan;
}

std::string replace(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
}

TEST(Plan, SurvivesJsonUnchangedAndIsWrittenStably) {
    const Plan plan = make_plan();
    const std::string text = to_json(plan);
    EXPECT_EQ(plan_from_json(text), plan);
    EXPECT_EQ(to_json(plan_from_json(text)), text);
}

TEST(Plan, CanBeWrittenByHandWithTheAssignmentsAlone) {
    const Plan plan = plan_from_json(R"({"format": "voodoo.plan", "version": 1,
                                         "tensors": [{"name": "output.weight", "type": "q8_0"}]})");
    ASSERT_NE(plan.find_type("output.weight"), nullptr);
    EXPECT_EQ(*plan.find_type("output.weight"), "q8_0");
    EXPECT_EQ(plan.find_type("output"), nullptr);
    EXPECT_EQ(plan.target_bytes, 0u);
}

TEST(Plan, GoesThroughAFile) {
    const std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) / "voodoo_plan_test.json";
    write_plan(path.string(), make_plan());
    EXPECT_EQ(read_plan(path.string()), make_plan());
    std::filesystem::remove(path);
    EXPECT_ERROR(read_plan(path.string()), ErrorKind::io);
}

TEST(Plan, HashDependsOnAssignmentsAlone) {
    const Plan plan = make_plan();
    Plan same = plan;
    std::reverse(same.tensors.begin(), same.tensors.end());
    same.tensors[0].type = "iq3_xxs";
    same.seed = 5;
    same.method = "hand";
    EXPECT_EQ(same.plan_hash(), plan.plan_hash());
    EXPECT_EQ(plan.plan_hash().size(), 64u);
    Plan other = plan;
    std::swap(other.tensors[0].type, other.tensors[1].type);
    EXPECT_NE(other.plan_hash(), plan.plan_hash());
}

TEST(Plan, RefusesHostileFiles) {
    const std::string good = to_json(make_plan());
    const auto refuse = [&](const std::string& text) {
        EXPECT_ERROR(plan_from_json(text), ErrorKind::bad_file);
    };
    refuse("");
    refuse("[]");
    refuse("nonsense");
    refuse(good.substr(0, good.size() / 2));
    refuse(std::string(100'000, '['));
    refuse(R"({"format": "voodoo.plan", "version": 1, "x": )" + std::string(100'000, '['));
    refuse(R"({"format": "voodoo.plan", "version": 1, "tensors": []})");
    refuse(replace(good, "voodoo.plan", "other.plan"));
    refuse(replace(good, "\"version\": 1", "\"version\": 2"));
    refuse(replace(good, "\"version\": 1", "\"version\": \"1\""));
    refuse(replace(good, "95000000", "-1"));
    refuse(replace(good, "95000000", "1.5"));
    refuse(replace(good, "95000000", "18446744073709551615"));
    refuse(replace(good, "95000000", "1e999"));
    refuse(replace(good, "\"gates\"", "7"));
    refuse(replace(good, "0.1", "\"0.1\""));
    refuse(replace(good, "\"Q4_K\"", "\"Q4 K\""));
    refuse(replace(good, "\"Q4_K\"", "\"\""));
    refuse(replace(good, "\"Q4_K\"", "null"));
    refuse(replace(good, "\"Q4_K\"", "\"Q5_K\""));  // no longer what plan_hash says
    refuse(replace(good, "blk.1.ffn_down", "blk.0.ffn_down"));
    refuse(replace(good, "blk.1.ffn_down", "blk\\n1"));
    refuse(replace(good, "blk.1.ffn_down", std::string(5000, 'x')));
    refuse(replace(good, "blk.1.ffn_down", "blk\xff"));
}

TEST(Plan, RefusesToWriteWhatItWouldNotRead) {
    const auto refuse = [](auto&& change) {
        Plan plan = make_plan();
        change(plan);
        EXPECT_ERROR(to_json(plan), ErrorKind::usage);
    };
    refuse([](Plan& p) { p.tensors.clear(); });
    refuse([](Plan& p) { p.tensors[1].tensor = p.tensors[0].tensor; });
    refuse([](Plan& p) { p.tensors[1].type = "Q4=K"; });
    refuse([](Plan& p) { p.tensors[1].tensor = "tab\there"; });
    refuse([](Plan& p) { p.scores["x"] = std::numeric_limits<double>::infinity(); });
    refuse([](Plan& p) { p.file_bytes = ~uint64_t{0}; });
    refuse([](Plan& p) { p.method = "\xff"; });
}

TEST(Plan, FitsExactlyTheTensorsThatItNames) {
    Plan plan = make_plan();
    std::vector<TensorInfo> tensors = {{"token_embd.weight", {256, 1000}},
                                       {"blk.0.ffn_down.weight", {512, 256}},
                                       {"blk.1.ffn_down.weight", {512, 256}}};
    EXPECT_ERROR(check_plan_fits(plan, tensors), ErrorKind::usage);  // another model_id
    plan.model_id = model_identity(tensors);
    EXPECT_NO_THROW(check_plan_fits(plan, tensors));
    tensors[1].shape[0] = 256;
    EXPECT_ERROR(check_plan_fits(plan, tensors), ErrorKind::usage);
    plan.model_id.clear();
    EXPECT_NO_THROW(check_plan_fits(plan, tensors));
    tensors[1].name = "blk.7.ffn_down.weight";
    try {
        check_plan_fits(plan, tensors);
        FAIL() << "a tensor is unknown and one is missing";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(error.message().find("blk.0.ffn_down.weight"), std::string::npos)
            << error.message();
        EXPECT_NE(error.message().find("blk.7.ffn_down.weight"), std::string::npos)
            << error.message();
    }
}

TEST(Plan, IdentityTellsNamesShapesAndOrderApart) {
    const std::vector<TensorInfo> a = {{"a", {1, 2}}, {"b", {3}}},
                                  reordered = {{"b", {3}}, {"a", {1, 2}}},
                                  moved = {{"a", {1}}, {"b", {2, 3}}},
                                  forged = {{"a 1 2\n1:b", {3}}};
    EXPECT_NE(model_identity(a), model_identity(reordered));
    EXPECT_NE(model_identity(a), model_identity(moved));
    EXPECT_NE(model_identity(a), model_identity(forged));
}

TEST(Recipe, WritesOneEscapedLineATensor) {
    EXPECT_EQ(to_recipe(make_plan()),
              "^token_embd\\.weight$=q6_k\n"
              "^blk\\.0\\.ffn_down\\.weight$=q4_k\n"
              "^blk\\.1\\.ffn_down\\.weight$=iq3_xxs\n");
}

// llama-quantize reads words, splits at the first '=', lower-cases the pattern, and takes the first
// regex_search that hits.
std::string first_match(const std::string& recipe, const std::string& tensor) {
    std::istringstream words(recipe);
    for (std::string word; words >> word;) {
        const size_t split = word.find('=');
        std::string pattern = word.substr(0, split);
        std::transform(pattern.begin(), pattern.end(), pattern.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (std::regex_search(tensor, std::regex(pattern))) {
            return word.substr(split + 1);
        }
    }
    return {};
}

TEST(Recipe, MatchesEachTensorAndNoOtherAsLlamaQuantizeReadsIt) {
    const std::vector<std::string> names = {"blk.0.a.weight",
                                            "blk.10.a.weight",
                                            "blk.0xa.weight",
                                            "xblk.0.a.weight",
                                            "blk.0.a.weight.b",
                                            "BLK.0.A.weight",
                                            "a=b",
                                            "a b",
                                            "a+(b)[c]*?|^$\\",
                                            "a-b_c",
                                            "caf\xc3\xa9.weight"};
    Plan plan;
    for (size_t i = 0; i < names.size(); ++i) {
        plan.tensors.push_back({names[i], fmt::format("T{}", i)});
    }
    const std::string recipe = to_recipe(plan);
    for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(first_match(recipe, names[i]), fmt::format("t{}", i)) << names[i];
    }
    EXPECT_EQ(first_match(recipe, "blk.0.a.weigh"), "");
}

}  // namespace
}  // namespace voodoo::search
