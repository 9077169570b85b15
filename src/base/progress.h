// What long work reports and asks: progress, log lines, cancellation. Library code never prints:
// the caller passes an Observer.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace voodoo {

enum class LogLevel { debug, info, warn, error };

/// Receives what long-running work reports. All methods may be called from any thread; the default
/// ignores all.
class Observer {
public:
    virtual ~Observer() = default;
    virtual void log(LogLevel /*level*/, std::string_view /*message*/) {}
    /// A stage starts: `unit` is what its work is counted in, e.g. "tokens"; total 0 = unknown.
    virtual void stage_begin(std::string_view /*stage*/, double /*total*/,
                             std::string_view /*unit*/) {}
    virtual void stage_progress(std::string_view /*stage*/, double /*done*/,
                                std::string_view /*note*/) {}
    virtual void stage_end(std::string_view /*stage*/, double /*seconds*/, bool /*from_cache*/) {}
};

/// An Observer that ignores everything.
Observer& null_observer();

/// Set by a signal handler or another thread; work polls it at safe points.
class Cancellation {
public:
    void request() { requested_.store(true, std::memory_order_relaxed); }
    bool requested() const { return requested_.load(std::memory_order_relaxed); }
    /// Throws Error(interrupted) if a request was made.
    void check() const;

private:
    std::atomic<bool> requested_{false};
};

}  // namespace voodoo
