// Runs `quantize` in a process of its own that kills itself at a given event: for resume_test.
//   quantize_child SETTINGS.toml EVENTS.txt KILL_AT DELAY_US
// KILL_AT counts the observer's events; -1 lets the run end and writes the number of events.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "base/files.h"
#include "pipeline/settings_toml.h"
#include "pipeline/stages.h"

namespace {

class KillingObserver : public voodoo::Observer {
public:
    KillingObserver(int kill_at, int delay_us) : kill_at_(kill_at), delay_us_(delay_us) {}

    void stage_begin(std::string_view, double, std::string_view) override { event(); }
    void stage_progress(std::string_view, double, std::string_view) override { event(); }
    void stage_end(std::string_view, double, bool) override { event(); }
    int n_events() const { return n_events_; }

private:
    void event() {
        if (++n_events_ != kill_at_) return;
        if (delay_us_ == 0) ::kill(::getpid(), SIGKILL);
        // In the middle of what follows the event.
        std::thread([delay = delay_us_] {
            ::usleep(static_cast<useconds_t>(delay));
            ::kill(::getpid(), SIGKILL);
        }).detach();
    }

    const int kill_at_;
    const int delay_us_;
    std::atomic<int> n_events_{0};
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    try {
        KillingObserver observer(std::atoi(argv[3]), std::atoi(argv[4]));
        const auto settings =
            voodoo::pipeline::settings_from_toml(voodoo::read_file(argv[1]), argv[1]);
        const voodoo::Cancellation cancellation;
        voodoo::pipeline::run_quantize(settings, observer, cancellation);
        voodoo::write_file_atomic(argv[2], std::to_string(observer.n_events()));
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
