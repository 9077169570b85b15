#include "search/tuning.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace voodoo::search {
namespace {

constexpr double kStopErrors = 2.0;
constexpr double kAcceptErrors = 1.0;
/// Counts in a saved state are doubles; none of them is larger.
constexpr double kMaxCount = 1e9;

[[noreturn]] void usage(const std::string& message) {
    throw Error(ErrorKind::usage, message, "tuning");
}

bool all_finite(std::span<const double> values) {
    return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

/// Reads a saved state front to back.
class StateReader {
public:
    explicit StateReader(std::string_view bytes) : values_(bytes.size() / sizeof(double)) {
        if (bytes.size() % sizeof(double) != 0) fail("a part of a number is missing");
        std::memcpy(values_.data(), bytes.data(), bytes.size());
        if (!all_finite(values_)) fail("a number is not finite");
    }
    double number() {
        if (at_ == values_.size()) fail("its end is missing");
        return values_[at_++];
    }
    int64_t count() {
        const double x = number();
        if (x < 0.0 || x > kMaxCount || x != std::floor(x)) fail("a count is not a whole number");
        return static_cast<int64_t>(x);
    }
    std::vector<double> row(size_t n) {
        if (n > values_.size() - at_) fail("its end is missing");
        const auto begin = values_.begin() + static_cast<std::ptrdiff_t>(at_);
        at_ += n;
        return {begin, begin + static_cast<std::ptrdiff_t>(n)};
    }
    void expect_end() const {
        if (at_ != values_.size()) fail("it is too long");
    }
    [[noreturn]] static void fail(const char* message) {
        throw Error(ErrorKind::bad_file, message, "tuning state");
    }

private:
    std::vector<double> values_;
    size_t at_ = 0;
};

}  // namespace

void validate(const TuningOptions& o) {
    std::string faults;
    const auto require = [&](bool good, const char* what) {
        if (!good) faults += (faults.empty() ? "" : "; ") + std::string(what);
    };
    require(o.n_steps >= 1 && o.n_steps <= 1'000'000, "n_steps must be in [1, 1000000]");
    require(o.lr >= 0.0 && o.lr <= 1.0, "the learning rate must be in [0, 1]");
    require(o.lr_end_ratio >= 0.0 && o.lr_end_ratio <= 1.0, "lr_end_ratio must be in [0, 1]");
    require(o.warmup_share >= 0.0 && o.warmup_share <= 1.0, "warmup_share must be in [0, 1]");
    require(o.beta1 >= 0.0 && o.beta1 < 1.0, "beta1 must be in [0, 1)");
    require(o.beta2 >= 0.0 && o.beta2 < 1.0, "beta2 must be in [0, 1)");
    require(o.epsilon > 0.0 && std::isfinite(o.epsilon), "epsilon must be > 0");
    require(o.n_checks >= 1 && o.n_checks <= 1000, "n_checks must be in [1, 1000]");
    if (!faults.empty()) usage(faults);
}

double TuningCheck::mean() const {
    return std::accumulate(loss.begin(), loss.end(), 0.0) / static_cast<double>(loss.size());
}

Tuning::Tuning(std::vector<TuningTensor> tensors, TuningOptions options)
    : tensors_(std::move(tensors)), options_(options) {
    validate(options_);
    for (const TuningTensor& tensor : tensors_) {
        double squares = 0.0;
        for (const float w : tensor.source) squares += static_cast<double>(w) * w;
        if (!std::isfinite(squares)) usage(fmt::format("{} is not finite", tensor.name));
        const double n = std::max(1.0, static_cast<double>(tensor.source.size()));
        scale_.push_back(std::sqrt(squares / n));
    }
    z_ = mean_ = second_ = best_z_ = zeros();
}

Tuning::Rows Tuning::zeros() const {
    Rows rows;
    for (const TuningTensor& tensor : tensors_) rows.emplace_back(tensor.source.size(), 0.0);
    return rows;
}

int64_t Tuning::n_parameters() const {
    int64_t n = 0;
    for (const TuningTensor& tensor : tensors_) n += static_cast<int64_t>(tensor.source.size());
    return n;
}

bool Tuning::finished() const {
    return stopped_ || (step_ >= options_.n_steps && !check_due());
}

double Tuning::lr_at(int64_t step) const {
    const auto n = static_cast<double>(options_.n_steps);
    const double warmup = options_.warmup_share * n;
    const double done = static_cast<double>(step) + 1.0;
    if (done <= warmup) return options_.lr * done / warmup;
    const double t = n > warmup ? std::min(1.0, (done - warmup) / (n - warmup)) : 1.0;
    const double end = options_.lr_end_ratio;
    return options_.lr * (end + (1.0 - end) * 0.5 * (1.0 + std::cos(std::numbers::pi * t)));
}

std::vector<float> Tuning::values_at(size_t t, const Rows& z) const {
    const TuningTensor& tensor = tensors_[t];
    std::vector<float> values(tensor.source.size());
    for (size_t i = 0; i < values.size(); ++i) {
        const double w = tensor.source[i];
        values[i] =
            static_cast<float>(tensor.form == TuningForm::multiplied ? w * std::exp(z[t][i])
                                                                     : w + scale_[t] * z[t][i]);
    }
    return values;
}

std::vector<float> Tuning::values(size_t tensor) const {
    return values_at(tensor, z_);
}

std::vector<float> Tuning::best_values(size_t tensor) const {
    return values_at(tensor, best_z_);
}

bool Tuning::step(std::span<const std::vector<double>> gradients) {
    VOODOO_CHECK(!finished() && gradients.size() == tensors_.size(),
                 "step {} of {} with {} gradients", step_, options_.n_steps, gradients.size());
    const double lr = lr_at(step_++);
    for (size_t t = 0; t < tensors_.size(); ++t) {
        VOODOO_CHECK(gradients[t].size() == z_[t].size(), "{} gradients for {}",
                     gradients[t].size(), tensors_[t].name);
        if (!all_finite(gradients[t])) return false;
    }
    const TuningOptions& o = options_;
    ++n_applied_;
    const double unbias1 = 1.0 - std::pow(o.beta1, static_cast<double>(n_applied_));
    const double unbias2 = 1.0 - std::pow(o.beta2, static_cast<double>(n_applied_));
    for (size_t t = 0; t < tensors_.size(); ++t) {
        const bool multiplied = tensors_[t].form == TuningForm::multiplied;
        for (size_t i = 0; i < z_[t].size(); ++i) {
            // dL/dz = dL/dw dw/dz
            const double slope =
                multiplied ? tensors_[t].source[i] * std::exp(z_[t][i]) : scale_[t];
            const double g = gradients[t][i] * slope;
            double& mean = mean_[t][i];
            double& second = second_[t][i];
            mean = o.beta1 * mean + (1.0 - o.beta1) * g;
            second = o.beta2 * second + (1.0 - o.beta2) * g * g;
            z_[t][i] -= lr * (mean / unbias1) / (std::sqrt(second / unbias2) + o.epsilon);
        }
    }
    return true;
}

bool Tuning::check_due() const {
    if (stopped_) return false;
    if (checks_.empty()) return true;
    const auto quota = [&](int64_t step) {
        return step * std::min(options_.n_checks, options_.n_steps) / options_.n_steps;
    };
    return quota(step_) > quota(checks_.back().step);
}

void Tuning::check(std::vector<double> chunk_losses) {
    const bool finite = all_finite(chunk_losses);
    if (checks_.empty()) {
        if (!finite || chunk_losses.empty()) usage("the model before tuning has no finite loss");
        checks_.push_back({step_, std::move(chunk_losses)});
        return;
    }
    if (chunk_losses.size() != checks_.front().loss.size())
        usage(fmt::format("{} validation chunks instead of {}", chunk_losses.size(),
                          checks_.front().loss.size()));
    if (!finite) {
        stopped_ = true;
        return;
    }
    checks_.push_back({step_, std::move(chunk_losses)});
    const TuningCheck& now = checks_.back();
    if (now.mean() < checks_[best_].mean()) {
        best_ = checks_.size() - 1;
        best_z_ = z_;
        return;
    }
    stopped_ =
        compare_paired(now.loss, checks_[best_].loss, kStopErrors).verdict == Verdict::b_better;
}

PairedComparison Tuning::gain() const {
    VOODOO_CHECK(!checks_.empty(), "no validation yet");
    return compare_paired(checks_[best_].loss, checks_.front().loss, kAcceptErrors);
}

bool Tuning::accepted() const {
    return !checks_.empty() && gain().verdict == Verdict::a_better;
}

// The state is a sequence of doubles (counts are exact in them).
std::string Tuning::serialize() const {
    std::vector<double> out{static_cast<double>(step_),
                            static_cast<double>(n_applied_),
                            stopped_ ? 1.0 : 0.0,
                            static_cast<double>(best_),
                            static_cast<double>(checks_.size()),
                            checks_.empty() ? 0.0 : static_cast<double>(checks_[0].loss.size())};
    const auto append = [&](const std::vector<double>& row) {
        out.insert(out.end(), row.begin(), row.end());
    };
    for (const TuningCheck& check : checks_) {
        out.push_back(static_cast<double>(check.step));
        append(check.loss);
    }
    for (const Rows* rows : {&z_, &mean_, &second_, &best_z_}) {
        for (const auto& row : *rows) append(row);
    }
    std::string bytes(out.size() * sizeof(double), '\0');
    std::memcpy(bytes.data(), out.data(), bytes.size());
    return bytes;
}

void Tuning::restore(std::string_view bytes) {
    StateReader in(bytes);
    Tuning read = *this;
    read.step_ = in.count();
    read.n_applied_ = in.count();
    read.stopped_ = in.count() != 0;
    read.best_ = static_cast<size_t>(in.count());
    const int64_t n_checks = in.count();
    const auto n_chunks = static_cast<size_t>(in.count());
    const bool counts_fit = read.step_ <= options_.n_steps && read.n_applied_ <= read.step_ &&
                            n_checks <= options_.n_checks + 1 &&
                            static_cast<int64_t>(read.best_) < std::max<int64_t>(1, n_checks) &&
                            (n_checks > 0) == (n_chunks > 0);
    if (!counts_fit) StateReader::fail("its counts contradict each other");
    read.checks_.clear();
    for (int64_t c = 0; c < n_checks; ++c) {
        const int64_t step = in.count();
        if (step > read.step_) StateReader::fail("a check lies after the last step");
        read.checks_.push_back({step, in.row(n_chunks)});
    }
    for (Rows* rows : {&read.z_, &read.mean_, &read.second_, &read.best_z_}) {
        for (auto& row : *rows) row = in.row(row.size());
    }
    in.expect_end();
    for (const auto& row : read.second_) {
        if (std::any_of(row.begin(), row.end(), [](double x) { return x < 0.0; }))
            StateReader::fail("a second moment is negative");
    }
    *this = std::move(read);
}

}  // namespace voodoo::search
