// Progress and log lines for people, on stderr: one line that updates itself on a terminal, a plain
// line every few seconds elsewhere.
#pragma once

#include <spdlog/logger.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/progress.h"
#include "cli/stage_meter.h"

namespace voodoo::cli {

struct ConsoleOptions {
    bool terminal = false;                          ///< update one line in place
    bool quiet = false;                             ///< no progress, only warnings and errors
    bool verbose = false;                           ///< debug messages too
    size_t width = 80;                              ///< columns of the terminal
    double interval_seconds = 5.0;                  ///< between plain lines
    double terminal_interval_seconds = 0.1;         ///< between updates on a terminal
    std::function<void(std::string_view)> write{};  ///< where the text goes
    std::function<double()> now{};                  ///< seconds of a clock that never goes back
};

/// Threads: any method from any of them. The log goes through spdlog.
class ConsoleObserver final : public Observer {
public:
    explicit ConsoleObserver(ConsoleOptions options);
    ~ConsoleObserver() override;

    void log(LogLevel level, std::string_view message) override;
    void stage_begin(std::string_view stage, double total, std::string_view unit) override;
    void stage_progress(std::string_view stage, double done, std::string_view note) override;
    void stage_end(std::string_view stage, double seconds, bool from_cache) override;

private:
    void clear_line();
    void print_line(const std::string& line);

    ConsoleOptions options_;
    std::mutex mutex_;
    std::shared_ptr<spdlog::logger> logger_;
    std::map<std::string, StageMeter, std::less<>> stages_;
    double last_print_ = 0;
    bool line_open_ = false;  ///< the terminal's last line is a progress line
};

/// Options for stderr as it is, with the real clock.
ConsoleOptions stderr_options();

/// `line` cut to `width` bytes, no UTF-8 sequence torn.
std::string cut_to_width(std::string line, size_t width);

}  // namespace voodoo::cli
