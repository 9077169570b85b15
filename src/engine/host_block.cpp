#include "engine/host_block.h"

#include <ggml-cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace voodoo::engine {

HostBlock::HostBlock(size_t size_bytes)
    : size_bytes_(aligned(std::max<size_t>(size_bytes, kAlignment))) {
    // Anonymous pages are zero and cost nothing until they are touched.
    void* data =
        ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        throw Error(ErrorKind::out_of_memory,
                    fmt::format("no memory for {}", format_size(size_bytes_)), "engine",
                    "lower --memory, or use a machine with more");
    }
    data_ = static_cast<std::byte*>(data);
    ::madvise(data, size_bytes_, MADV_HUGEPAGE);
    buffer_ = ggml_backend_cpu_buffer_from_ptr(data_, size_bytes_);
}

HostBlock::~HostBlock() {
    if (buffer_ != nullptr) ggml_backend_buffer_free(buffer_);
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

HostBlock::HostBlock(HostBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      buffer_(std::exchange(other.buffer_, nullptr)) {}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(buffer_, other.buffer_);
    return *this;
}

void HostBlock::bind(ggml_tensor* tensor, size_t offset) const {
    VOODOO_CHECK(offset % kAlignment == 0 && offset + ggml_nbytes(tensor) <= size_bytes_,
                 "tensor {} does not fit at {} of {}", tensor->name, offset, size_bytes_);
    tensor->buffer = nullptr;
    tensor->data = nullptr;
    const ggml_status status = ggml_backend_tensor_alloc(buffer_, tensor, data_ + offset);
    VOODOO_CHECK(status == GGML_STATUS_SUCCESS, "binding of {} failed", tensor->name);
}

}  // namespace voodoo::engine
