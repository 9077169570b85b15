// SIGINT and SIGTERM ask the running work to stop; a second one ends the process at once.
#pragma once

#include <csignal>

#include "base/progress.h"

namespace voodoo::cli {

/// Installs the handlers for its life. One object at a time.
class SignalGuard {
public:
    /// `cancellation` must outlive the guard.
    explicit SignalGuard(Cancellation& cancellation);
    ~SignalGuard();
    SignalGuard(const SignalGuard&) = delete;
    SignalGuard& operator=(const SignalGuard&) = delete;

    /// The signal that was received, 0 if none was.
    int received() const;

private:
    struct sigaction old_int_ {};
    struct sigaction old_term_ {};
};

}  // namespace voodoo::cli
