// The process-wide side of llama.cpp: its one-time start, its version, and its log, which goes to
// an Observer instead of stderr. Models and contexts are in model.h.
#pragma once

#include "base/progress.h"

#include <string>
#include <vector>

namespace voodoo::model {

/// Starts llama.cpp's backends and takes over its log. Cheap after the first call; any thread.
void init_llama();

/// Version of the llama.cpp library that is linked, e.g. "0.5.0".
std::string llama_cpp_version();

/// Sends llama.cpp's log lines of all threads to `observer` from now on; nullptr (the initial
/// state) drops them. Its errors arrive as warnings and all else as debug: what makes an operation
/// of ours fail is in the Error. The observer must outlive its registration.
void set_llama_log_observer(Observer* observer);

enum class LlamaLogLevel { debug, info, warn, error };

/// One complete line of llama.cpp's log, without its newline.
struct LlamaLogLine {
    LlamaLogLevel level;
    std::string text;
};

/// Collects the lines that llama.cpp logs *on this thread* while the object lives. Captures nest:
/// the innermost gets the line. Lines still go to the observer as well. Must die on the thread that
/// made it.
class LogCapture {
public:
    LogCapture();
    ~LogCapture();
    LogCapture(const LogCapture&) = delete;
    LogCapture& operator=(const LogCapture&) = delete;

    const std::vector<LlamaLogLine>& lines() const { return lines_; }
    /// The last up to three error lines joined with "; ", or `fallback` if there was none.
    std::string last_errors(std::string fallback) const;

    /// For the log callback only.
    void append(LlamaLogLine line) { lines_.push_back(std::move(line)); }

private:
    std::vector<LlamaLogLine> lines_;
    LogCapture* outer_;
};

}  // namespace voodoo::model
