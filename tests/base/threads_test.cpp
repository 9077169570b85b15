#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace voodoo {
namespace {

TEST(ThreadPool, VisitsEveryIndexOnce) {
    for (const int n_threads : {1, 2, 5}) {
        ThreadPool pool(n_threads);
        EXPECT_EQ(pool.size(), n_threads);
        for (const int64_t n : {0, 1, 7, 1000}) {
            std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
            pool.parallel_for(n, 3, [&](int64_t begin, int64_t end, int worker) {
                EXPECT_LE(end - begin, 3);
                EXPECT_LT(worker, n_threads);
                for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
            });
            for (const auto& count : visits) EXPECT_EQ(count, 1);
        }
    }
}

TEST(ThreadPool, RethrowsABodysExceptionAndStaysUsable) {
    ThreadPool pool(2);
    EXPECT_THROW(pool.parallel_for(100, 1,
                                   [](int64_t begin, int64_t, int) {
                                       if (begin == 50) throw std::runtime_error("x");
                                   }),
                 std::runtime_error);
    std::atomic<int> count{0};
    pool.parallel_for(10, 1, [&](int64_t, int64_t, int) { ++count; });
    EXPECT_EQ(count, 10);
}

}  // namespace
}  // namespace voodoo
