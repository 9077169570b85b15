// A block of host memory that tensors of any ggml context can be bound to.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace voodoo::engine {

/// Aligned, zero-filled memory with a ggml buffer over it. Not copyable; movable.
class HostBlock {
public:
    static constexpr size_t kAlignment = 64;

    HostBlock() = default;
    /// Throws Error(out_of_memory).
    explicit HostBlock(size_t size_bytes);
    ~HostBlock();
    HostBlock(HostBlock&& other) noexcept;
    HostBlock& operator=(HostBlock&& other) noexcept;

    size_t size_bytes() const { return size_bytes_; }
    std::byte* data() { return data_; }
    /// Makes `tensor` live at `offset` (a multiple of kAlignment) of this block.
    void bind(ggml_tensor* tensor, size_t offset) const;

    static size_t aligned(size_t size_bytes) {
        return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    }

private:
    std::byte* data_ = nullptr;
    size_t size_bytes_ = 0;
    ggml_backend_buffer_t buffer_ = nullptr;
};

}  // namespace voodoo::engine
