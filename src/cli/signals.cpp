#include "cli/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

namespace voodoo::cli {
namespace {

// A handler may only touch what is lock-free.
std::atomic<Cancellation*> g_cancellation{nullptr};
std::atomic<int> g_received{0};
static_assert(std::atomic<Cancellation*>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);

void handle(int signal) {
    const int saved_errno = errno;
    if (g_received.exchange(signal) != 0) {
        // The second of either kind: SA_RESETHAND has put the default action back, which ends the
        // process.
        ::raise(signal);
        return;
    }
    if (Cancellation* cancellation = g_cancellation.load()) {
        cancellation->request();
    }
    static constexpr std::string_view text =
        "\nvoodoo: stopping at the next safe point; once more to stop at once\n";
    // Nothing can be done about a failed write here.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    errno = saved_errno;
}

}  // namespace

SignalGuard::SignalGuard(Cancellation& cancellation) {
    g_received.store(0);
    g_cancellation.store(&cancellation);
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
}

SignalGuard::~SignalGuard() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
    g_cancellation.store(nullptr);
}

int SignalGuard::received() const {
    return g_received.load();
}

}  // namespace voodoo::cli
