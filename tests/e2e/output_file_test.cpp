// What the output file is besides its tensors: metadata, shards, and where it may be written.
#include <gtest/gtest.h>

#include "base/files.h"
#include "e2e/e2e_run.h"
#include "gguf/writer.h"
#include "model/presets.h"
#include "search/plan.h"

namespace voodoo::e2e {
namespace {

namespace fs = std::filesystem;

class OutputFile : public ::testing::Test {
protected:
    void SetUp() override {
        write_source(folder / "model.gguf");
        settings = quick_settings(folder / "model.gguf", folder / "out.gguf");
        settings.size_bytes = size_between(settings, 0.35);
    }

    void expect_refused_as_the_model(const fs::path& output) {
        const std::string before = read_file(folder / "model.gguf");
        settings.output = output;
        try {
            quantize(settings);
            ADD_FAILURE() << output << " was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
            EXPECT_NE(std::string(error.what()).find("the model itself"), std::string::npos)
                << error.what();
        }
        EXPECT_EQ(read_file(folder / "model.gguf"), before);
    }

    const TempFolder folder;
    pipeline::Settings settings;
};

TEST_F(OutputFile, KeepsTheMetadataAndSaysWhatMadeIt) {
    quantize(settings);
    const gguf::File in = gguf::File::open(folder / "model.gguf");
    const gguf::File out = gguf::File::open(folder / "out.gguf");
    for (const gguf::KeyValue& item : in.metadata()) {
        const gguf::Value* value = out.find(item.key);
        ASSERT_NE(value, nullptr) << item.key;
        EXPECT_EQ(*value, item.value) << item.key;
    }
    const search::Plan plan = search::read_plan(folder / "out.gguf.run/plan.json");
    EXPECT_EQ(out.find_string("voodoo.plan_hash"), plan.plan_hash());
    EXPECT_EQ(out.find_u64("voodoo.target_bytes"), *settings.size_bytes);
    EXPECT_FALSE(out.find_string("voodoo.version").value_or("").empty());
    EXPECT_EQ(out.find_string("voodoo.method").value_or("").substr(0, 5), "gates");
    EXPECT_EQ(out.find_u64("general.quantization_version"), uint64_t{GGML_QNT_VERSION});
    EXPECT_EQ(plan.file_bytes, fs::file_size(folder / "out.gguf"));
    for (const search::PlanEntry& entry : plan.tensors) {
        ASSERT_NE(out.find_tensor(entry.tensor), nullptr);
        EXPECT_STRCASEEQ(ggml_type_name(out.find_tensor(entry.tensor)->type), entry.type.c_str());
    }
}

TEST_F(OutputFile, HasTheFileTypeOfMostOfItsWeights) {
    const auto expect_file_type = [&] {
        quantize(settings);
        const gguf::File out = gguf::File::open(folder / "out.gguf");
        std::map<ggml_type, int64_t> weights;
        for (const gguf::TensorInfo& tensor : out.tensors())
            weights[tensor.type] += tensor.n_elements();
        const auto most =
            std::max_element(weights.begin(), weights.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        EXPECT_EQ(out.find_u64("general.file_type"), model::ftype_for_type(most->first))
            << ggml_type_name(most->first);
    };
    expect_file_type();
    // Kept tensors hold weights too.
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate"}) {
        settings.keep.push_back(std::string("blk.0.") + name + ".weight");
    }
    settings.size_bytes = size_between(settings, 0.35);
    expect_file_type();
}

TEST_F(OutputFile, MayBeWrittenInShardsThatHoldTheSameTensors) {
    quantize(settings);
    settings.run_dir = folder / "out.gguf.run";
    settings.output = folder / "parts.gguf";
    settings.split_max_bytes = 120000;
    const Cancellation never;
    const pipeline::QuantizeResult result =
        pipeline::run_export(settings, {}, null_observer(), never);
    ASSERT_GE(result.files.size(), 3u);
    uint64_t total = 0;
    for (const fs::path& file : result.files) {
        EXPECT_LE(fs::file_size(file), settings.split_max_bytes) << file;
        total += fs::file_size(file);
    }
    EXPECT_EQ(result.file_bytes, total);
    EXPECT_FALSE(fs::exists(folder / "parts.gguf"));
    expect_same_tensors(folder / "out.gguf", result.files.back());
    const std::string bench = testing::run_llama_tool(
        "llama-bench", {"-m", result.files.front(), "-p", "16", "-n", "0", "-r", "1", "-t", "2"});
    EXPECT_NE(bench.find("pp16"), std::string::npos) << bench;
}

TEST_F(OutputFile, InShardsIsNotLargerThanTheSizeEither) {
    settings.output = folder / "parts.gguf";
    settings.split_max_bytes = 120000;
    const pipeline::QuantizeResult result = quantize(settings);
    ASSERT_GE(result.files.size(), 3u);
    EXPECT_LE(result.file_bytes, *settings.size_bytes) << "the headers of the shards count too";
}

TEST_F(OutputFile, OfASplitModelIsThatOfTheWholeOne) {
    quantize(settings);
    const gguf::File whole = gguf::File::open(folder / "model.gguf");
    auto writer = gguf::Writer::split(folder / "split", whole.metadata(),
                                      gguf::planned_tensors(whole.tensors()), 600000);
    for (const gguf::TensorInfo& tensor : whole.tensors())
        writer.write_tensor(tensor.name, whole.data(tensor));
    writer.commit();
    ASSERT_GE(writer.paths().size(), 3u);
    settings.model = writer.paths().front();
    settings.output = folder / "from_split.gguf";
    quantize(settings);
    EXPECT_EQ(read_file(folder / "from_split.gguf"), read_file(folder / "out.gguf"));

    // Every shard is one of the model's own files.
    settings.output = writer.paths().back();
    EXPECT_THROW(quantize(settings), Error);
    // Shards of the output would fall on those of the model.
    settings.output = folder / "split.gguf";
    settings.split_max_bytes = 600000;
    const std::string before = read_file(writer.paths().front());
    const std::map<std::string, ggml_type> types = tensor_types(writer.paths().front());
    try {
        quantize(settings);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    }
    EXPECT_EQ(read_file(writer.paths().front()), before);
    EXPECT_EQ(tensor_types(writer.paths().front()), types);
}

TEST_F(OutputFile, IsRefusedIfItIsTheModel) {
    expect_refused_as_the_model(folder / "model.gguf");
}

TEST_F(OutputFile, IsRefusedIfItIsASymbolicLinkToTheModel) {
    fs::create_symlink(folder / "model.gguf", folder / "link.gguf");
    expect_refused_as_the_model(folder / "link.gguf");
}

TEST_F(OutputFile, IsRefusedIfItIsAHardLinkToTheModel) {
    fs::create_hard_link(folder / "model.gguf", folder / "hard.gguf");
    expect_refused_as_the_model(folder / "hard.gguf");
}

TEST_F(OutputFile, IsRefusedInAFolderThatDoesNotExist) {
    settings.output = folder / "nowhere/out.gguf";
    EXPECT_THROW(quantize(settings), Error);
}

TEST_F(OutputFile, CanBeMadeAgainFromThePlan) {
    quantize(settings);
    const fs::path run = folder / "out.gguf.run";
    settings.run_dir = run;
    settings.output = folder / "again.gguf";
    const Cancellation cancellation;
    const auto result = pipeline::run_export(settings, {}, null_observer(), cancellation);
    EXPECT_EQ(result.file_bytes, fs::file_size(folder / "out.gguf"));
    EXPECT_EQ(read_file(folder / "again.gguf"), read_file(folder / "out.gguf"));

    // A plan written by hand, in a run of its own.
    search::Plan plan = search::read_plan(run / "plan.json");
    for (search::PlanEntry& entry : plan.tensors) entry.type = "q8_0";
    plan.method = "hand";
    search::write_plan(folder / "hand.json", plan);
    settings.run_dir.clear();
    settings.output = folder / "hand.gguf";
    pipeline::run_export(settings, folder / "hand.json", null_observer(), cancellation);
    for (const search::PlanEntry& entry : plan.tensors)
        EXPECT_EQ(tensor_types(folder / "hand.gguf").at(entry.tensor), GGML_TYPE_Q8_0);
}

}  // namespace
}  // namespace voodoo::e2e
