// A small llama model with a byte vocabulary, made on the spot, and llama.cpp's tools run on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace voodoo::testing {

struct TinyModelOptions {
    uint64_t seed = 1;
    int n_embd = 256;
    int n_layer = 2;
    int n_vocab_extra = 0;
    bool add_bos = true;
    std::string architecture = "llama";
    /// 0: a dense model. Else `n_expert_used` of so many experts for each token; no token chooses
    /// the last one.
    int n_expert = 0;
    int n_expert_used = 2;
    /// Above 1: experts are chosen from the better two of so many groups (a divisor of n_expert).
    int n_expert_groups = 0;
    int n_ff = 0;  ///< 0: twice n_embd, or n_embd of each expert
};

/// Token ids of the vocabulary: <unk> 0, BOS 1, EOS 2, byte b at 3 + b, then the space and the
/// extra tokens.
inline constexpr int32_t kBos = 1;
inline constexpr int32_t kEos = 2;
inline constexpr int32_t kFirstByte = 3;
inline constexpr int32_t kVocab = 260;

/// Writes the model: BF16 matrices with random weights, F32 norms.
void write_tiny_model(const std::filesystem::path& path, const TinyModelOptions& options = {});

/// A fresh folder that is removed with the object.
class TempFolder {
public:
    TempFolder();
    ~TempFolder();
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

private:
    std::filesystem::path path_;
};

/// `n` bytes of lower-case words.
std::string sample_text(size_t n, uint64_t seed = 3);

/// Runs a tool of the llama.cpp build on one thread; returns its output. Fails the test if it
/// doesn't exit with 0.
std::string run_llama_tool(const std::string& tool, const std::vector<std::string>& arguments);

/// The same, again (at most five times) until the output contains `wanted`: llama.cpp's tools log
/// from a thread whose last lines are lost now and then when the process ends.
std::string run_llama_tool_until(const std::string& tool, const std::vector<std::string>& arguments,
                                 const std::string& wanted);

/// Tensor types (ggml_type) of a GGUF file by name.
std::map<std::string, int> file_types(const std::filesystem::path& path);

}  // namespace voodoo::testing
