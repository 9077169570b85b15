// SHA-256 through OpenSSL: content addresses of tensors, plans and files.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace voodoo {

/// Incremental SHA-256.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;

    Sha256& update(const void* data, size_t size_bytes);
    Sha256& update(std::string_view bytes) { return update(bytes.data(), bytes.size()); }
    /// 64 lower-case hex digits. The object can't be updated afterwards.
    std::string hex();

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// SHA-256 of a string as 64 hex digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace voodoo
