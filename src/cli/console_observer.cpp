#include "cli/console_observer.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace voodoo::cli {
namespace {

/// Hands formatted log lines to a function, so that they and the progress line don't mix.
class FunctionSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
public:
    explicit FunctionSink(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

private:
    void sink_it_(const spdlog::details::log_msg& message) override {
        spdlog::memory_buf_t buffer;
        formatter_->format(message, buffer);
        write_(std::string_view(buffer.data(), buffer.size()));
    }
    void flush_() override {}

    std::function<void(std::string_view)> write_;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
        case LogLevel::debug:
            return spdlog::level::debug;
        case LogLevel::info:
            return spdlog::level::info;
        case LogLevel::warn:
            return spdlog::level::warn;
        case LogLevel::error:
            return spdlog::level::err;
    }
    return spdlog::level::err;
}

}  // namespace

ConsoleObserver::ConsoleObserver(ConsoleOptions options) : options_(std::move(options)) {
    logger_ =
        std::make_shared<spdlog::logger>("voodoo", std::make_shared<FunctionSink>(options_.write));
    logger_->set_pattern("[%H:%M:%S] %l: %v", spdlog::pattern_time_type::local);
    logger_->set_level(options_.quiet     ? spdlog::level::warn
                       : options_.verbose ? spdlog::level::debug
                                          : spdlog::level::info);
}

ConsoleObserver::~ConsoleObserver() {
    clear_line();
}

void ConsoleObserver::log(LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (!logger_->should_log(spdlog_level(level))) {
        return;
    }
    clear_line();
    logger_->log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
}

void ConsoleObserver::stage_begin(std::string_view stage, double total, std::string_view unit) {
    const std::lock_guard lock(mutex_);
    const double now = options_.now();
    stages_.insert_or_assign(std::string(stage),
                             StageMeter(std::string(stage), total, std::string(unit), now));
    if (options_.terminal) {
        print_line(stages_.find(stage)->second.line());
    }
    last_print_ = now;
}

void ConsoleObserver::stage_progress(std::string_view stage, double done, std::string_view note) {
    const std::lock_guard lock(mutex_);
    const auto found = stages_.find(stage);
    if (found == stages_.end()) {
        return;
    }
    const double now = options_.now();
    found->second.update(done, note, now);
    const double interval =
        options_.terminal ? options_.terminal_interval_seconds : options_.interval_seconds;
    if (now - last_print_ >= interval) {
        print_line(found->second.line());
        last_print_ = now;
    }
}

void ConsoleObserver::stage_end(std::string_view stage, double seconds, bool from_cache) {
    const std::lock_guard lock(mutex_);
    const auto found = stages_.find(stage);
    const StageMeter fallback(std::string(stage), 0, "", options_.now());
    const StageMeter& meter = found == stages_.end() ? fallback : found->second;
    if (!options_.quiet) {
        clear_line();
        options_.write(meter.end_line(seconds, from_cache) + "\n");
    }
    if (found != stages_.end()) {
        stages_.erase(found);
    }
}

void ConsoleObserver::clear_line() {
    if (line_open_) {
        options_.write("\r\033[K");
        line_open_ = false;
    }
}

void ConsoleObserver::print_line(const std::string& line) {
    if (options_.quiet) {
        return;
    }
    if (!options_.terminal) {
        options_.write(line + "\n");
        return;
    }
    options_.write("\r\033[K" + cut_to_width(line, options_.width - 1));
    line_open_ = true;
}

std::string cut_to_width(std::string line, size_t width) {
    if (line.size() > width) {
        while (width > 0 && (static_cast<unsigned char>(line[width]) & 0xC0) == 0x80) {
            --width;
        }
        line.resize(width);
    }
    return line;
}

ConsoleOptions stderr_options() {
    ConsoleOptions options;
    options.terminal = ::isatty(STDERR_FILENO) == 1;
    winsize size{};
    if (options.terminal && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
        options.width = size.ws_col;
    }
    options.write = [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stderr);
        std::fflush(stderr);
    };
    options.now = [] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    };
    return options;
}

}  // namespace voodoo::cli
