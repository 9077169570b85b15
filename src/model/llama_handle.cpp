// Log routing: llama.cpp logs in fragments; they are joined to lines per thread before anybody sees
// them.
#include "model/llama_handle.h"

#include <llama.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace voodoo::model {

namespace {

std::atomic<Observer*> g_observer{nullptr};

thread_local LogCapture* t_capture = nullptr;
thread_local std::string t_partial;
thread_local LlamaLogLevel t_partial_level = LlamaLogLevel::info;

LlamaLogLevel level_of(ggml_log_level level, LlamaLogLevel previous) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR:
            return LlamaLogLevel::error;
        case GGML_LOG_LEVEL_WARN:
            return LlamaLogLevel::warn;
        case GGML_LOG_LEVEL_INFO:
            return LlamaLogLevel::info;
        case GGML_LOG_LEVEL_CONT:
            return previous;
        default:
            return LlamaLogLevel::debug;
    }
}

void deliver(LlamaLogLevel level, std::string text) {
    if (text.empty()) {
        return;
    }
    if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
        observer->log(level == LlamaLogLevel::error ? LogLevel::warn : LogLevel::debug,
                      "llama.cpp: " + text);
    }
    if (t_capture != nullptr) {
        t_capture->append({level, std::move(text)});
    }
}

// llama.cpp calls it through C function pointers; our Observers don't throw by contract, so only
// bad_alloc could pass, and losing a log line is better than losing the process.
void on_log(ggml_log_level level, const char* text, void* /*user_data*/) noexcept {
    try {
        for (const char* c = text; *c != '\0'; ++c) {
            if (*c == '\n') {
                deliver(t_partial_level, std::exchange(t_partial, {}));
                continue;
            }
            // A line has the level of its first fragment, except that an error in it makes it one.
            const LlamaLogLevel fragment = level_of(level, t_partial_level);
            if (t_partial.empty() || fragment == LlamaLogLevel::error) {
                t_partial_level = fragment;
            }
            t_partial += *c;
        }
    } catch (const std::exception&) {
        t_partial.clear();
    }
}

}  // namespace

void init_llama() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_log, nullptr);
        llama_backend_init();
    });
}

std::string llama_cpp_version() {
    return llama_version();
}

void set_llama_log_observer(Observer* observer) {
    g_observer.store(observer, std::memory_order_release);
}

LogCapture::LogCapture() : outer_(t_capture) {
    t_partial.clear();
    t_capture = this;
}

LogCapture::~LogCapture() {
    t_capture = outer_;
}

std::string LogCapture::last_errors(std::string fallback) const {
    constexpr int kMaxLines = 3;
    std::string joined;
    int n = 0;
    for (auto it = lines_.rbegin(); it != lines_.rend() && n < kMaxLines; ++it) {
        if (it->level == LlamaLogLevel::error) {
            joined = joined.empty() ? it->text : it->text + "; " + joined;
            ++n;
        }
    }
    return joined.empty() ? std::move(fallback) : joined;
}

}  // namespace voodoo::model
