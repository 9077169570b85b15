// The bytes of llama-quantize --tensor-type-file, tensor by tensor, with and without an importance
// matrix that we wrote.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "gguf/reader.h"
#include "quant/imatrix.h"
#include "test_data.h"

namespace voodoo::quant {
namespace {

namespace fs = std::filesystem;

int run(const std::string& command, const fs::path& log) {
    return std::system(fmt::format("{} >{} 2>&1", command, log.string()).c_str());
}

MatrixShape shape_of(const gguf::TensorInfo& tensor) {
    return {tensor.ne[0], tensor.ne[1], tensor.ne[2] * tensor.ne[3]};
}

class LlamaQuantize : public testing::Test {
protected:
    void SetUp() override {
        const std::string command = fmt::format("{}/test-llama-archs -a llama -o {}",
                                                VOODOO_TEST_LLAMA_BIN, folder.path().string());
        ASSERT_EQ(run(command, folder.path() / "log"), 0);
        source_path = folder.path() / "llama-moe.gguf";
        ASSERT_TRUE(fs::exists(source_path));
    }

    /// Weights that a recipe may name, small enough for the slow types.
    static std::vector<const gguf::TensorInfo*> weights_of(const gguf::File& file) {
        std::vector<const gguf::TensorInfo*> result;
        for (const gguf::TensorInfo& tensor : file.tensors()) {
            const std::string& name = tensor.name;
            const bool is_matrix = name.ends_with(".weight") && tensor.ne[1] > 1;
            // llama.cpp does not quantize the router.
            if (is_matrix && name.find("ffn_gate_inp") == std::string::npos)
                result.push_back(&tensor);
        }
        return result;
    }

    Imatrix make_imatrix(const gguf::File& file) const {
        Imatrix imatrix;
        imatrix.datasets = {"test"};
        imatrix.chunk_count = 3;
        imatrix.chunk_size = 512;
        uint64_t seed = 0;
        for (const gguf::TensorInfo* tensor : weights_of(file)) {
            const MatrixShape shape = shape_of(*tensor);
            ImatrixEntry& entry = imatrix.entries[tensor->name];
            entry.sums = random_importance(shape.n_per_row * shape.n_mat, ++seed);
            entry.sums[5] = 0.0f;
            for (int64_t m = 0; m < shape.n_mat; ++m) entry.counts.push_back(1535 + 7 * m);
            if (shape.n_mat > 1) entry.counts[1] = 0;  // an expert that was never routed to
        }
        return imatrix;
    }

    /// Quantizes with the recipe and compares every tensor of it.
    void expect_same(const gguf::File& source, const std::map<std::string, ggml_type>& recipe,
                     const Imatrix* imatrix) {
        const fs::path out_path = folder.path() / "out.gguf";
        std::ofstream recipe_file(folder.path() / "recipe.txt");
        for (const auto& [name, type] : recipe) {
            std::string pattern;
            for (const char c : name) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
            recipe_file << "^" << pattern << "$=" << type_info(type).name << "\n";
        }
        recipe_file.close();
        std::string options =
            fmt::format("--tensor-type-file {}", (folder.path() / "recipe.txt").string());
        if (imatrix != nullptr) {
            write_imatrix(*imatrix, folder.path() / "imatrix.gguf");
            options += fmt::format(" --imatrix {}", (folder.path() / "imatrix.gguf").string());
        }
        // Both processes build their tables at the same time.
        std::thread tables([&] {
            for (const auto& [name, type] : recipe) ggml_quantize_init(type);
        });
        const fs::path log = folder.path() / "log";
        const int status =
            run(fmt::format("{}/llama-quantize {} {} {} Q8_0 2", VOODOO_TEST_LLAMA_BIN, options,
                            source_path.string(), out_path.string()),
                log);
        tables.join();
        ASSERT_EQ(status, 0) << std::ifstream(log).rdbuf();

        const gguf::File out = gguf::File::open(out_path);
        ThreadPool pool(2);
        for (const auto& [name, type] : recipe) {
            SCOPED_TRACE(fmt::format("{} as {}", name, type_info(type).name));
            const gguf::TensorInfo* theirs = out.find_tensor(name);
            ASSERT_NE(theirs, nullptr);
            ASSERT_EQ(theirs->type, type);
            const gguf::TensorInfo& tensor = *source.find_tensor(name);
            const MatrixShape shape = shape_of(tensor);
            std::vector<float> weights(static_cast<size_t>(shape.n_elements()));
            to_float(tensor.type, source.data(tensor).data(), weights.data(), shape.n_elements());
            const std::vector<float> importance =
                imatrix != nullptr ? imatrix->importance(name).values : std::vector<float>();
            const std::vector<std::byte> ours = encoded(type, weights, shape, importance, pool);
            const std::span<const std::byte> bytes = out.data(*theirs);
            EXPECT_TRUE(std::equal(ours.begin(), ours.end(), bytes.begin(), bytes.end()));
            n_compared[type] += 1;
        }
    }

    /// Spreads all types that are legal over the tensors, in as many runs as it takes.
    void compare_all_types(const Imatrix* imatrix) {
        const gguf::File source = gguf::File::open(source_path);
        const std::vector<const gguf::TensorInfo*> weights = weights_of(source);
        ASSERT_GE(weights.size(), 8u);
        std::set<ggml_type> open;
        for (const TypeInfo& info : all_types()) {
            if (is_legal(info.type, 256, imatrix != nullptr, false)) open.insert(info.type);
        }
        const size_t n_types = open.size();
        bool first = true;
        while (!open.empty()) {
            std::map<std::string, ggml_type> recipe;
            for (const gguf::TensorInfo* tensor : weights) {
                const auto fits = std::find_if(open.begin(), open.end(), [&](ggml_type type) {
                    return is_legal(type, tensor->ne[0], imatrix != nullptr, false) &&
                           (!has_slow_tables(type) || tensor->n_elements() <= 65536);
                });
                if (fits == open.end()) continue;
                recipe[tensor->name] = *fits;
                open.erase(fits);
            }
            // Experts have importances of their own; make sure that a type which uses them is among
            // those compared.
            if (first) recipe["blk.0.ffn_gate_exps.weight"] = GGML_TYPE_Q4_K;
            first = false;
            ASSERT_FALSE(recipe.empty());
            expect_same(source, recipe, imatrix);
            if (HasFatalFailure()) return;
        }
        EXPECT_GE(n_compared.size() + 1, n_types);  // the experts' type may have displaced one
        EXPECT_GE(n_compared[GGML_TYPE_Q4_K], 1);
    }

    ScratchFolder folder;
    fs::path source_path;
    std::map<ggml_type, int> n_compared;
};

TEST_F(LlamaQuantize, GivesTheSameBytesForEveryTypeWithAnImatrix) {
    const gguf::File source = gguf::File::open(source_path);
    const Imatrix imatrix = make_imatrix(source);
    compare_all_types(&imatrix);
}

TEST_F(LlamaQuantize, GivesTheSameBytesForEveryLegalTypeWithout) {
    compare_all_types(nullptr);
}

}  // namespace
}  // namespace voodoo::quant
