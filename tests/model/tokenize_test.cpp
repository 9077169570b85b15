#include "model/tokenize.h"

#include "base/files.h"
#include "model/tiny_model.h"

#include <gtest/gtest.h>

namespace voodoo::model {
namespace {

using testing::kBos;
using testing::kFirstByte;

Model tiny(const testing::TempFolder& folder, bool add_bos = true) {
    testing::TinyModelOptions options;
    options.add_bos = add_bos;
    testing::write_tiny_model(folder / "m.gguf", options);
    LoadOptions vocab_only;
    vocab_only.vocab_only = true;
    return Model::load(folder / "m.gguf", vocab_only);
}

TEST(Tokenize, GivesBytesAndBosAndComesBack) {
    testing::TempFolder folder;
    const Model model = tiny(folder);
    EXPECT_EQ(tokenize(model, "ab"),
              (std::vector<Token>{kBos, kFirstByte + 'a', kFirstByte + 'b'}));
    EXPECT_EQ(tokenize(model, "ab", false),
              (std::vector<Token>{kFirstByte + 'a', kFirstByte + 'b'}));
    EXPECT_EQ(tokenize(model, "", false), std::vector<Token>{});
    const std::string text = "Grüße, \xE4\xB8\x96\xE7\x95\x8C!\n";
    EXPECT_EQ(detokenize(model, tokenize(model, text, false)), text);
}

TEST(Tokenize, ParsesSpecialTokensOnlyWhenAsked) {
    testing::TempFolder folder;
    const Model model = tiny(folder);
    EXPECT_EQ(tokenize(model, "</s>", false, true), std::vector<Token>{testing::kEos});
    EXPECT_EQ(tokenize(model, "</s>", false, false).size(), 4u);
}

TEST(Tokenize, KnowsTheSpecialTokens) {
    testing::TempFolder folder;
    const Model model = tiny(folder);
    const SpecialTokens special = special_tokens(model);
    EXPECT_EQ(special.bos, kBos);
    EXPECT_EQ(special.eos, testing::kEos);
    EXPECT_TRUE(special.add_bos);
    EXPECT_TRUE(is_end_of_generation(model, testing::kEos));
    EXPECT_FALSE(is_end_of_generation(model, kFirstByte + 'a'));
    testing::TempFolder other;
    EXPECT_FALSE(special_tokens(tiny(other, false)).add_bos);
}

TEST(Tokenize, RefusesTokensOutsideTheVocabulary) {
    testing::TempFolder folder;
    const Model model = tiny(folder);
    const std::vector<Token> tokens = {testing::kVocab};
    EXPECT_THROW(detokenize(model, tokens), Error);
}

TEST(Chunks, ReplaceTheFirstTokenByBosAndDropTheRest) {
    SpecialTokens special;
    special.bos = 1;
    special.add_bos = true;
    const std::vector<Token> tokens = {1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
    const TokenChunks chunks = chunk_tokens(special, tokens, 4);
    EXPECT_EQ(chunks.n_chunks(), 2);
    EXPECT_EQ(chunks.tokens, (std::vector<Token>{1, 10, 11, 12, 1, 14, 15, 16}));
    EXPECT_EQ(chunks.chunk(1)[1], 14);

    special.add_bos = false;
    EXPECT_EQ(chunk_tokens(special, tokens, 4).tokens,
              (std::vector<Token>{1, 10, 11, 12, 13, 14, 15, 16}));
    EXPECT_EQ(chunk_tokens(special, tokens, 4, 1).n_chunks(), 1);
    EXPECT_EQ(chunk_tokens(special, tokens, 4, 9).n_chunks(), 2);
}

TEST(Chunks, RefuseTextsShorterThanOneChunk) {
    const std::vector<Token> tokens = {1, 2, 3};
    EXPECT_THROW(chunk_tokens({}, tokens, 4), Error);
    EXPECT_THROW(chunk_tokens({}, tokens, 1), Error);
    EXPECT_THROW(chunk_tokens({}, tokens, 3, 0), Error);
}

TEST(Chunks, HaveAHashOfTheirContent) {
    const TokenChunks a{2, {1, 2, 3, 4}};
    const TokenChunks other_length{4, {1, 2, 3, 4}};
    const TokenChunks other_token{2, {1, 2, 3, 5}};
    EXPECT_EQ(token_hash(a), token_hash(TokenChunks{2, {1, 2, 3, 4}}));
    EXPECT_NE(token_hash(a), token_hash(other_length));
    EXPECT_NE(token_hash(a), token_hash(other_token));
}

TEST(TextFile, LosesOneTrailingNewlineAsInLlamaCpp) {
    testing::TempFolder folder;
    write_file_atomic(folder / "t.txt", "text\n\n");
    EXPECT_EQ(read_text_file(folder / "t.txt"), "text\n");
    EXPECT_THROW(read_text_file(folder / "none.txt"), Error);
}

}  // namespace
}  // namespace voodoo::model
