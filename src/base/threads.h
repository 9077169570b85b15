// A fixed pool of threads and a parallel loop over an index range.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace voodoo {

/// Number of hardware threads that this process may use (affinity and cgroup quota respected), at
/// least 1.
int available_threads();

class ThreadPool {
public:
    /// n_threads <= 0: available_threads(). The calling thread takes part, so n_threads = 1 starts
    /// none.
    explicit ThreadPool(int n_threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const;

    /// Calls body(begin, end, worker) for disjoint ranges of at most `grain` indices that cover [0,
    /// n); worker is in [0, size()). Returns when all are done; rethrows the first exception of a
    /// body. Not re-entrant: a body must not call parallel_for of the same pool.
    void parallel_for(int64_t n, int64_t grain,
                      const std::function<void(int64_t, int64_t, int)>& body);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace voodoo
