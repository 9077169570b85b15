// Rate and remaining time of one stage, and its progress as text. Knows no clock and no terminal.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace voodoo::cli {

class StageMeter {
public:
    /// `total` 0: unknown. `now` is in seconds of any clock that all calls share.
    StageMeter(std::string name, double total, std::string unit, double now);

    void update(double done, std::string_view note, double now);

    /// Units per second over the last half minute; nothing while that can't be told. Work that a
    /// resumed stage finds done when it starts does not count.
    std::optional<double> rate() const;
    /// Seconds to go; nothing without a rate or a total.
    std::optional<double> remaining() const;

    /// "train: 12288/49152 tokens, 25 %, 1234 tokens/s, 0:30 left, loss 2.1"
    std::string line() const;
    /// "train: done in 41.2 s, 1193 tokens/s" or "train: taken from the run directory".
    std::string end_line(double seconds, bool from_cache) const;

private:
    struct Sample {
        double time;
        double done;
    };
    std::string amount(double x) const;
    std::string rate_text(double per_second) const;

    std::string name_;
    double total_;
    std::string unit_;
    std::string note_;
    double begin_;
    std::deque<Sample> samples_;
};

/// Three significant digits and no exponent: 1234, 12.3, 0.123.
std::string format_figure(double x);

}  // namespace voodoo::cli
