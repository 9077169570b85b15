// Text to tokens and back, and the cutting of token lists into chunks as llama-imatrix and
// llama-perplexity do.
#pragma once

#include "model/model.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace voodoo::model {

/// What the vocabulary says about special tokens.
struct SpecialTokens {
    std::optional<Token> bos;
    std::optional<Token> eos;
    bool add_bos = false;
    bool add_eos = false;
};

SpecialTokens special_tokens(const Model& model);

/// True if the token ends a generation (end of sequence, of turn, ...).
bool is_end_of_generation(const Model& model, Token token);

/// add_special: add BOS/EOS where the vocabulary asks for it. parse_special: "<|im_start|>" in the
/// text is that token instead of plain text. llama-perplexity uses (true, false), llama-imatrix
/// (true, false) by default. Throws Error(unsupported_model) if the model has no tokenizer,
/// Error(usage) for texts of 2 GiB or more.
std::vector<Token> tokenize(const Model& model, std::string_view text, bool add_special = true,
                            bool parse_special = false);

/// Inverse of tokenize; special tokens are written out if `with_special`.
std::string detokenize(const Model& model, std::span<const Token> tokens, bool with_special = true);

/// A text file as llama.cpp's tools read it for `-f`: one trailing newline is dropped. Throws
/// Error(io).
std::string read_text_file(const std::filesystem::path& path);

/// Chunks of equal length, one after another in `tokens`.
struct TokenChunks {
    int32_t chunk_len = 0;
    std::vector<Token> tokens;

    int32_t n_chunks() const {
        return chunk_len == 0
                   ? 0
                   : static_cast<int32_t>(tokens.size() / static_cast<size_t>(chunk_len));
    }
    std::span<const Token> chunk(int32_t i) const {
        return std::span(tokens).subspan(static_cast<size_t>(i) * chunk_len,
                                         static_cast<size_t>(chunk_len));
    }
};

/// Cuts into whole chunks of `chunk_len` (the rest is dropped), at most `max_chunks` if that is not
/// negative. Where the vocabulary wants a BOS, it *replaces* each chunk's first token, as
/// llama.cpp's tools do. Throws Error(usage) if there is not one whole chunk.
TokenChunks chunk_tokens(const SpecialTokens& special, std::span<const Token> tokens,
                         int32_t chunk_len, int32_t max_chunks = -1);

/// SHA-256 over chunk length and tokens (as little-endian 32-bit numbers): identifies calibration
/// data.
std::string token_hash(const TokenChunks& chunks);

}  // namespace voodoo::model
