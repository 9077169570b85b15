#include "base/hash.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace voodoo {

struct Sha256::State {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    bool finished = false;
    ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
    VOODOO_CHECK(state_->context != nullptr &&
                     EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
                 "SHA-256 is not available in libcrypto");
}

Sha256::~Sha256() = default;

Sha256& Sha256::update(const void* data, size_t size_bytes) {
    VOODOO_CHECK(!state_->finished, "update after hex()");
    EVP_DigestUpdate(state_->context, data, size_bytes);
    return *this;
}

std::string Sha256::hex() {
    VOODOO_CHECK(!state_->finished, "hex() twice");
    state_->finished = true;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(state_->context, digest, &size);
    static const char* digits = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
        text += digits[digest[i] >> 4];
        text += digits[digest[i] & 15];
    }
    return text;
}

std::string sha256_hex(std::string_view bytes) {
    return Sha256().update(bytes).hex();
}

}  // namespace voodoo
