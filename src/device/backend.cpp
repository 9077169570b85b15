#include "device/backend.h"

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/threads.h"

namespace voodoo::device {

std::vector<DeviceInfo> list_devices() {
    std::vector<DeviceInfo> devices;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        DeviceInfo info;
        info.name = ggml_backend_dev_name(device);
        info.description = ggml_backend_dev_description(device);
        switch (ggml_backend_dev_type(device)) {
            case GGML_BACKEND_DEVICE_TYPE_CPU:
                info.kind = "cpu";
                break;
            case GGML_BACKEND_DEVICE_TYPE_GPU:
                info.kind = "gpu";
                break;
            case GGML_BACKEND_DEVICE_TYPE_IGPU:
                info.kind = "integrated gpu";
                break;
            default:
                info.kind = "accelerator";
                break;
        }
        size_t free = 0;
        size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        info.memory_free = free;
        info.memory_total = total;
        devices.push_back(std::move(info));
    }
    return devices;
}

Backend Backend::cpu(int n_threads) {
    Backend backend;
    backend.n_threads_ = n_threads > 0 ? n_threads : available_threads();
    backend.backend_.reset(ggml_backend_cpu_init());
    if (!backend.backend_) throw Error(ErrorKind::device, "the CPU backend can't be started");
    ggml_backend_cpu_set_n_threads(backend.backend_.get(), backend.n_threads_);
    return backend;
}

ggml_backend_buffer_type_t Backend::buffer_type() const {
    return ggml_backend_get_default_buffer_type(backend_.get());
}

void Backend::compute(ggml_cgraph* graph) const {
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), graph);
    if (status != GGML_STATUS_SUCCESS) {
        throw Error(ErrorKind::device,
                    fmt::format("computation failed: {}", ggml_status_to_string(status)));
    }
}

double matmul_gflops(const Backend& backend, ggml_type type) {
    constexpr int64_t n = 1024;
    constexpr int64_t columns = 512;
    ggml_context* context =
        ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true});
    ggml_tensor* a = ggml_new_tensor_2d(context, type, n, n);
    ggml_tensor* b = ggml_new_tensor_2d(context, GGML_TYPE_F32, n, columns);
    ggml_tensor* c = ggml_mul_mat(context, a, b);
    ggml_cgraph* graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, c);
    ggml_backend_buffer_t buffer =
        ggml_backend_alloc_ctx_tensors_from_buft(context, backend.buffer_type());
    if (buffer == nullptr) {
        ggml_free(context);
        throw Error(ErrorKind::out_of_memory, "no memory for the matmul benchmark");
    }
    ggml_backend_buffer_clear(buffer, 0);
    double best = 0;
    for (int run = 0; run < 8; ++run) {
        const auto start = std::chrono::steady_clock::now();
        backend.compute(graph);
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        best = std::max(best, 2.0 * n * n * columns / time.count() / 1e9);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return best;
}

}  // namespace voodoo::device
