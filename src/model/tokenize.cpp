#include "model/tokenize.h"

#include "base/files.h"
#include "base/hash.h"

#include <llama.h>

#include <algorithm>
#include <limits>

namespace voodoo::model {

namespace {

std::optional<Token> token_or_nothing(llama_token token) {
    return token == LLAMA_TOKEN_NULL ? std::nullopt : std::optional<Token>(token);
}

void require_tokenizer(const Model& model) {
    if (!model.has_tokenizer()) {
        throw Error(ErrorKind::unsupported_model,
                    "the model has no tokenizer, so text can't be used with it",
                    model.path().string());
    }
}

int32_t checked_length(size_t length) {
    if (length > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
        throw Error(ErrorKind::usage, "llama.cpp can't tokenize 2 GiB or more at once", "tokenize",
                    "use a shorter text");
    }
    return static_cast<int32_t>(length);
}

}  // namespace

SpecialTokens special_tokens(const Model& model) {
    const llama_vocab* vocab = model.vocab();
    SpecialTokens special;
    special.bos = token_or_nothing(llama_vocab_bos(vocab));
    special.eos = token_or_nothing(llama_vocab_eos(vocab));
    special.add_bos = llama_vocab_get_add_bos(vocab) && special.bos.has_value();
    special.add_eos = llama_vocab_get_add_eos(vocab) && special.eos.has_value();
    return special;
}

bool is_end_of_generation(const Model& model, Token token) {
    return llama_vocab_is_eog(model.vocab(), token);
}

std::vector<Token> tokenize(const Model& model, std::string_view text, bool add_special,
                            bool parse_special) {
    require_tokenizer(model);
    const int32_t length = checked_length(text.size());
    // No token stands for less than a byte, except the special ones at the ends.
    std::vector<Token> tokens(text.size() + 2);
    const auto run = [&] {
        return llama_tokenize(model.vocab(), text.data(), length, tokens.data(),
                              checked_length(tokens.size()), add_special, parse_special);
    };
    int32_t n_tokens = run();
    if (n_tokens < 0 && n_tokens != std::numeric_limits<int32_t>::min()) {
        tokens.resize(static_cast<size_t>(-n_tokens));
        n_tokens = run();
    }
    VOODOO_CHECK(n_tokens >= 0, "llama_tokenize failed on {} bytes with {}", length, n_tokens);
    tokens.resize(static_cast<size_t>(n_tokens));
    return tokens;
}

std::string detokenize(const Model& model, std::span<const Token> tokens, bool with_special) {
    require_tokenizer(model);
    const int32_t n_vocab = model.n_vocab();
    for (const Token token : tokens) {
        if (token < 0 || token >= n_vocab) {
            throw Error(ErrorKind::usage,
                        fmt::format("token {} is not in the vocabulary of {}", token, n_vocab),
                        model.path().string());
        }
    }
    std::string text(tokens.size() * 8 + 16, '\0');
    const auto run = [&] {
        return llama_detokenize(model.vocab(), tokens.data(), checked_length(tokens.size()),
                                text.data(), checked_length(text.size()), false, with_special);
    };
    int32_t length = run();
    if (length < 0) {
        text.resize(static_cast<size_t>(-length));
        length = run();
    }
    VOODOO_CHECK(length >= 0, "llama_detokenize failed on {} tokens with {}", tokens.size(),
                 length);
    text.resize(static_cast<size_t>(length));
    return text;
}

std::string read_text_file(const std::filesystem::path& path) {
    std::string text = read_file(path);
    if (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    return text;
}

TokenChunks chunk_tokens(const SpecialTokens& special, std::span<const Token> tokens,
                         int32_t chunk_len, int32_t max_chunks) {
    if (chunk_len < 2) {
        throw Error(ErrorKind::usage,
                    fmt::format("chunks of {} tokens: at least 2 are needed", chunk_len));
    }
    const size_t length = static_cast<size_t>(chunk_len);
    size_t n_chunks = tokens.size() / length;
    if (max_chunks >= 0) {
        n_chunks = std::min(n_chunks, static_cast<size_t>(max_chunks));
    }
    if (n_chunks == 0) {
        throw Error(
            ErrorKind::usage,
            fmt::format("{} tokens make no whole chunk of {} tokens", tokens.size(), chunk_len), {},
            "use a longer text or shorter chunks");
    }
    TokenChunks chunks;
    chunks.chunk_len = chunk_len;
    chunks.tokens.assign(tokens.begin(),
                         tokens.begin() + static_cast<std::ptrdiff_t>(n_chunks * length));
    if (special.add_bos && special.bos) {
        for (size_t i = 0; i < n_chunks; ++i) {
            chunks.tokens[i * length] = *special.bos;
        }
    }
    return chunks;
}

std::string token_hash(const TokenChunks& chunks) {
    Sha256 hash;
    const auto add = [&hash](int32_t value) {
        const auto bits = static_cast<uint32_t>(value);
        const unsigned char bytes[4] = {static_cast<unsigned char>(bits & 0xff),
                                        static_cast<unsigned char>((bits >> 8) & 0xff),
                                        static_cast<unsigned char>((bits >> 16) & 0xff),
                                        static_cast<unsigned char>((bits >> 24) & 0xff)};
        hash.update(bytes, sizeof bytes);
    };
    add(chunks.chunk_len);
    for (const Token token : chunks.tokens) {
        add(token);
    }
    return hash.hex();
}

}  // namespace voodoo::model
