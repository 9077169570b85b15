// Compute backends: the only place that knows which kinds of device there are. Everything above
// sees a Backend that runs ggml graphs.
#pragma once

#include <ggml-backend.h>

#include <memory>
#include <string>
#include <vector>

namespace voodoo::device {

struct DeviceInfo {
    std::string name;         ///< e.g. "CPU"
    std::string description;  ///< e.g. the processor's name
    std::string kind;         ///< "cpu", "gpu", "integrated gpu", "accelerator"
    uint64_t memory_total = 0;
    uint64_t memory_free = 0;
};

/// All devices that the linked ggml offers.
std::vector<DeviceInfo> list_devices();

/// A backend that runs graphs on the CPU. One thread at a time.
class Backend {
public:
    /// n_threads <= 0: available_threads(). Throws Error(device).
    static Backend cpu(int n_threads);

    int n_threads() const { return n_threads_; }
    ggml_backend_buffer_type_t buffer_type() const;
    /// Runs all nodes. Throws Error(device) if the backend fails.
    void compute(ggml_cgraph* graph) const;

private:
    struct Free {
        void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    };
    std::unique_ptr<struct ggml_backend, Free> backend_;
    int n_threads_ = 1;
};

/// Measured rate of the CPU's dense matmul, in GFLOP/s, for 512 x n x n (n = 1024) with operands of
/// `type` (F32 or BF16): what the engine's step is compared with.
double matmul_gflops(const Backend& backend, ggml_type type);

}  // namespace voodoo::device
