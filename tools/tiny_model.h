// A small model with a byte vocabulary: its tensors, its metadata and its file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gguf/layout.h"
#include "gguf/value.h"
#include "tools/adamw.h"

namespace voodoo::tools {

/// The head is tied to the embedding. All of n_embd, n_ff and the head size times n_head are
/// multiples of 256, so that every quantized type is possible for every matrix. The architecture is
/// llama's, or with experts that of qwen3moe.
struct TinyShape {
    uint32_t n_embd = 256;
    uint32_t n_ff = 512;  ///< of each expert, where there are some
    uint32_t n_layer = 3;
    uint32_t n_head = 4;
    uint32_t n_head_kv = 2;
    uint32_t n_ctx = 512;
    uint32_t n_expert = 0;  ///< 0: a dense model
    uint32_t n_expert_used = 4;
};

/// Tensors in file order: BF16 matrices, F32 norms and routers.
std::vector<gguf::PlannedTensor> tiny_tensors(const TinyShape& shape);

/// Everything that llama.cpp needs to know, with a vocabulary that gives each byte of a text a
/// token (<unk> 0, BOS 1, EOS 2, byte b at 3 + b, the space's mark at 259), and `extra` keys.
gguf::Metadata tiny_metadata(const TinyShape& shape, const std::string& name,
                             const gguf::Metadata& extra = {});

/// Weights to start from: normal with deviation 1/sqrt(inputs), smaller for the embedding and for
/// what is added to the residual stream; norms are 1.
std::vector<Parameter> random_parameters(const TinyShape& shape, uint64_t seed);

/// Rounds the matrices to BF16 as the file holds them.
void round_matrices(const TinyShape& shape, std::vector<Parameter>& parameters);

/// Writes the model; parameters in the order of tiny_tensors. Throws Error(io).
void write_tiny(const std::filesystem::path& path, const TinyShape& shape,
                const gguf::Metadata& metadata, const std::vector<Parameter>& parameters);

}  // namespace voodoo::tools
