#include "cli/stage_meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace voodoo::cli {
namespace {

constexpr double kWindowSeconds = 30;
/// A rate over less time than this says nothing.
constexpr double kLeastSeconds = 0.2;

}  // namespace

std::string format_figure(double x) {
    if (!std::isfinite(x)) {
        return "?";
    }
    const double size = std::abs(x);
    const int decimals = size >= 99.95 || size == 0 ? 0
                         : size >= 9.995            ? 1
                         : size >= 0.9995           ? 2
                                                    : 3;
    return fmt::format("{:.{}f}", x, decimals);
}

StageMeter::StageMeter(std::string name, double total, std::string unit, double now)
    : name_(std::move(name)), total_(total), unit_(std::move(unit)), begin_(now) {}

void StageMeter::update(double done, std::string_view note, double now) {
    note_ = note;
    if (!samples_.empty() && done < samples_.back().done) {
        samples_.clear();  // the stage counts anew
    }
    samples_.push_back({now, done});
    while (samples_.size() > 2 && now - samples_.front().time > kWindowSeconds) {
        samples_.pop_front();
    }
}

std::optional<double> StageMeter::rate() const {
    if (samples_.empty()) {
        return std::nullopt;
    }
    // A first report right at the start is what a resumed stage found; one that comes later is work
    // done.
    const Sample last = samples_.back();
    Sample first = samples_.front();
    if (samples_.size() == 1) {
        first = {begin_, 0};
    }
    const double seconds = last.time - first.time;
    if (!(seconds >= kLeastSeconds) || !(last.done > first.done)) {
        return std::nullopt;
    }
    return (last.done - first.done) / seconds;
}

std::optional<double> StageMeter::remaining() const {
    const std::optional<double> per_second = rate();
    if (!per_second || total_ <= 0) {
        return std::nullopt;
    }
    return std::max(0.0, total_ - samples_.back().done) / *per_second;
}

std::string StageMeter::amount(double x) const {
    if (unit_ == "bytes") {
        return format_size(static_cast<uint64_t>(std::max(0.0, x)));
    }
    return x == std::floor(x) ? fmt::format("{:.0f}", x) : format_figure(x);
}

std::string StageMeter::rate_text(double per_second) const {
    return unit_ == "bytes" ? amount(per_second) + "/s"
                            : fmt::format("{} {}/s", format_figure(per_second), unit_);
}

std::string StageMeter::line() const {
    const double done = samples_.empty() ? 0.0 : samples_.back().done;
    const std::string unit = unit_ == "bytes" || unit_.empty() ? "" : " " + unit_;
    std::string text =
        total_ > 0 ? fmt::format("{}: {}/{}{}, {:.0f} %", name_, amount(done), amount(total_), unit,
                                 std::floor(100 * std::clamp(done / total_, 0.0, 1.0)))
                   : fmt::format("{}: {}{}", name_, amount(done), unit);
    if (const auto per_second = rate(); per_second && !unit_.empty()) {
        text += ", " + rate_text(*per_second);
    }
    if (const auto seconds = remaining()) {
        text += fmt::format(", {} left", format_duration(*seconds));
    }
    if (!note_.empty()) {
        text += ", " + note_;
    }
    return text;
}

std::string StageMeter::end_line(double seconds, bool from_cache) const {
    if (from_cache) {
        return fmt::format("{}: taken from the run directory", name_);
    }
    std::string text = fmt::format("{}: done in {}", name_, format_duration(seconds));
    if (total_ > 0 && !unit_.empty() && seconds >= kLeastSeconds) {
        const double found = samples_.size() > 1 && samples_.front().time - begin_ < kLeastSeconds
                                 ? samples_.front().done
                                 : 0.0;
        text += ", " + rate_text((total_ - found) / seconds);
    }
    return text;
}

}  // namespace voodoo::cli
