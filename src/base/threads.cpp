#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace voodoo {
namespace {

/// CPUs allowed by a cgroup v2 quota, rounded up; 0 if there is none.
int quota_cpus() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
    return std::max(1, static_cast<int>((std::atof(quota.c_str()) + period - 1) / period));
}

}  // namespace

int available_threads() {
    int n = static_cast<int>(std::thread::hardware_concurrency());
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) n = CPU_COUNT(&set);
    const int quota = quota_cpus();
    if (quota > 0) n = std::min(n, quota);
    return std::max(1, n);
}

struct ThreadPool::Impl {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable start;
    std::condition_variable done;
    const std::function<void(int64_t, int64_t, int)>* body = nullptr;
    int64_t n = 0;
    int64_t grain = 1;
    std::atomic<int64_t> next{0};
    int running = 0;
    uint64_t round = 0;
    bool stop = false;
    std::exception_ptr error;

    void work(int worker) {
        try {
            while (true) {
                const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
                if (begin >= n) return;
                (*body)(begin, std::min(begin + grain, n), worker);
            }
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
            next.store(n, std::memory_order_relaxed);
        }
    }

    void loop(int worker) {
        uint64_t seen = 0;
        while (true) {
            {
                std::unique_lock lock(mutex);
                start.wait(lock, [&] { return stop || round != seen; });
                if (stop) return;
                seen = round;
            }
            work(worker);
            const std::lock_guard lock(mutex);
            if (--running == 0) done.notify_one();
        }
    }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
    if (n_threads <= 0) n_threads = available_threads();
    for (int i = 1; i < n_threads; ++i) {
        impl_->threads.emplace_back([impl = impl_.get(), i] { impl->loop(i); });
    }
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->stop = true;
    }
    impl_->start.notify_all();
    for (auto& thread : impl_->threads) thread.join();
}

int ThreadPool::size() const {
    return static_cast<int>(impl_->threads.size()) + 1;
}

void ThreadPool::parallel_for(int64_t n, int64_t grain,
                              const std::function<void(int64_t, int64_t, int)>& body) {
    if (n <= 0) return;
    Impl& impl = *impl_;
    {
        const std::lock_guard lock(impl.mutex);
        impl.body = &body;
        impl.n = n;
        impl.grain = std::max<int64_t>(1, grain);
        impl.next.store(0, std::memory_order_relaxed);
        impl.running = static_cast<int>(impl.threads.size());
        impl.error = nullptr;
        ++impl.round;
    }
    impl.start.notify_all();
    impl.work(0);
    std::unique_lock lock(impl.mutex);
    impl.done.wait(lock, [&] { return impl.running == 0; });
    if (impl.error) std::rethrow_exception(impl.error);
}

}  // namespace voodoo
