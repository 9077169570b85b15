#include "base/hash.h"

#include <gtest/gtest.h>

namespace voodoo {
namespace {

// FIPS 180-2 appendix B.1 and the empty message.
TEST(Sha256, MatchesPublishedDigests) {
    EXPECT_EQ(sha256_hex("abc"),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, IsTheSameInPieces) {
    EXPECT_EQ(Sha256().update("ab").update("").update("c").hex(), sha256_hex("abc"));
}

}  // namespace
}  // namespace voodoo
