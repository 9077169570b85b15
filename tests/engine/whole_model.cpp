#include "engine/whole_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "engine/audit.h"
#include "engine/executor.h"
#include "gguf/reader.h"
#include "graph/functionalize.h"
#include "model/capture.h"
#include "model/presets.h"
#include "quant/codec.h"

namespace voodoo::engine {
namespace {

using Vector = std::vector<float>;

/// Weights from the file, one of them moved along its direction.
class FileWeights : public WeightSource {
public:
    FileWeights(const gguf::File& file, const std::vector<WeightInfo>& infos) : infos_(infos) {
        for (const WeightInfo& info : infos) {
            const gguf::TensorInfo* tensor = file.find_tensor(info.name);
            VOODOO_CHECK(tensor != nullptr, "{} is not in the file", info.name);
            bytes_.push_back(file.data(*tensor));
            Vector values(static_cast<size_t>(info.n_elements()));
            quant::to_float(tensor->type, bytes_.back().data(), values.data(), info.n_elements());
            values_.push_back(std::move(values));
        }
    }

    void load(int index, float* rows, float* transposed) override {
        const Vector& w = values_[static_cast<size_t>(index)];
        const WeightInfo& info = infos_[static_cast<size_t>(index)];
        for (size_t i = 0; i < w.size(); ++i) {
            rows[i] = w[i];
            if (index == moved_) rows[i] += step_ * (*direction_)[i];
        }
        if (transposed == nullptr) return;
        const int64_t n0 = info.ne[0], n1 = info.ne[1], matrix = n0 * n1;
        for (int64_t i = 0; i < info.n_elements(); ++i) {
            const int64_t m = i / matrix, r = i % matrix / n0, c = i % n0;
            transposed[m * matrix + c * n1 + r] = rows[i];
        }
    }
    std::span<const std::byte> stored(int index) override {
        return bytes_[static_cast<size_t>(index)];
    }

    void move(int index, const Vector* direction, float step) {
        moved_ = index;
        direction_ = direction;
        step_ = step;
    }
    const Vector& values(int index) const { return values_[static_cast<size_t>(index)]; }

private:
    const std::vector<WeightInfo>& infos_;
    std::vector<std::span<const std::byte>> bytes_;
    std::vector<Vector> values_;
    int moved_ = -1;
    const Vector* direction_ = nullptr;
    float step_ = 0;
};

/// L = sum(logits * R), in double.
class ProjectionLoss : public Loss {
public:
    explicit ProjectionLoss(const Vector& r, int64_t n_vocab) : r_(r), n_vocab_(n_vocab) {}
    void add(int, int64_t first, int64_t n, float* logits, bool want_gradient) override {
        const auto offset = static_cast<size_t>(first * n_vocab_);
        for (size_t i = 0; i < static_cast<size_t>(n * n_vocab_); ++i) {
            value += static_cast<double>(logits[i]) * static_cast<double>(r_[offset + i]);
            if (want_gradient) logits[i] = r_[offset + i];
        }
    }
    double value = 0;

private:
    const Vector& r_;
    int64_t n_vocab_;
};

class CollectLogits : public Loss {
public:
    explicit CollectLogits(Vector& out, int64_t n_vocab) : out_(out), n_vocab_(n_vocab) {}
    void add(int, int64_t first, int64_t n, float* logits, bool) override {
        out_.resize(std::max(out_.size(), static_cast<size_t>((first + n) * n_vocab_)));
        std::copy_n(logits, n * n_vocab_, out_.begin() + first * n_vocab_);
    }

private:
    Vector& out_;
    int64_t n_vocab_;
};

/// Random directions of one weight, each as long as the weight itself.
using Directions = std::vector<Vector>;

/// <dW, D> for every direction of every weight.
class DirectionSink : public GradientSink {
public:
    /// For a computation of one thread.
    DirectionSink(const std::map<int, Directions>& directions,
                  const std::vector<WeightInfo>& weights)
        : directions_(directions), weights_(weights) {}
    void take(int index, const float* dw, int64_t first_row, int64_t n_rows, int) override {
        const Directions& all = directions_.at(index);
        auto& sums = derivative[index];
        sums.resize(all.size(), 0.0);
        const int64_t n_per_row = weights_[static_cast<size_t>(index)].ne[0];
        for (size_t k = 0; k < all.size(); ++k) {
            const float* direction = all[k].data() + first_row * n_per_row;
            for (int64_t i = 0; i < n_rows * n_per_row; ++i)
                sums[k] += static_cast<double>(dw[i]) * static_cast<double>(direction[i]);
        }
    }
    std::map<int, std::vector<double>> derivative;

private:
    const std::map<int, Directions>& directions_;
    const std::vector<WeightInfo>& weights_;
};

double relative_error(const Vector& a, const Vector& b) {
    if (a.size() != b.size()) return INFINITY;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        difference += d * d;
        norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    return std::sqrt(difference / norm);
}

/// A fingerprint of which expert each row of MUL_MAT_ID's inputs went to: equal in two runs of one
/// executor of one thread if no routing decision differs. The rows are told apart by their address.
class RoutingSink : public MomentSink {
public:
    void take(int index, int64_t matrix, const float* x, int64_t, int64_t, int, int) override {
        for (const uint64_t part : {static_cast<uint64_t>(index), static_cast<uint64_t>(matrix),
                                    static_cast<uint64_t>(reinterpret_cast<uintptr_t>(x))})
            fingerprint = (fingerprint ^ part) * 0x100000001b3U;
    }
    uint64_t fingerprint = 0xcbf29ce484222325U;
};

Vector run_logits(Executor& executor, FileWeights& weights, std::span<const int32_t> tokens,
                  MomentSink* moments = nullptr) {
    const std::span<const int32_t> batch[] = {tokens};
    Vector hidden, logits;
    executor.forward(batch, weights, moments,
                     [&](int, std::span<const float> h) { hidden.assign(h.begin(), h.end()); });
    CollectLogits collect(logits, executor.n_vocab());
    executor.logits(
        1, weights, [&](int) { return std::span<const float>(hidden); }, collect);
    return logits;
}

bool has_gelu_table(const graph::Graph& graph) {
    for (const graph::Value& value : graph.values) {
        const std::string label = value.kind == graph::ValueKind::op ? graph::op_label(value) : "";
        if (label == "UNARY(GELU)" || label == "UNARY(GELU_QUICK)" || label == "GLU(GEGLU)" ||
            label == "GLU(GEGLU_QUICK)")
            return true;
    }
    return false;
}

bool has_routing(const graph::Graph& graph) {
    return std::any_of(graph.values.begin(), graph.values.end(), [](const graph::Value& value) {
        return value.kind == graph::ValueKind::op && value.op == GGML_OP_MUL_MAT_ID;
    });
}

std::vector<std::string> quantizable(const model::Model& model, const gguf::File& file) {
    std::vector<model::TensorShape> shapes;
    for (const auto& tensor : file.tensors()) shapes.push_back({tensor.name, tensor.ne});
    const std::vector<bool> allowed = model::allows_quantization(model, shapes);
    std::vector<std::string> names;
    for (size_t i = 0; i < shapes.size(); ++i) {
        if (allowed[i]) names.push_back(shapes[i].name);
    }
    return names;
}

class Checker {
public:
    Checker(const std::filesystem::path& path, const CheckOptions& options)
        : path_(path), options_(options), file_(gguf::File::open(path)), model_(load()) {
        result_.file = path.filename().string();
        Random random(11, "tokens");
        for (int i = 0; i < options.n_tokens; ++i)
            tokens_.push_back(
                static_cast<int32_t>(random.below(static_cast<uint64_t>(model_.n_vocab()))));
    }

    ModelCheck run() {
        model::CaptureOptions capture;
        capture.n_sequences = options_.n_sequences;
        capture.n_threads =
            1;  // tiny models: threads that wait for each other cost more than they give
        const model::Capture recorded = model::capture(model_, tokens_, capture);
        graph_ = graph::functionalize(recorded.trace);
        for (const std::string& name : quantizable(model_, file_)) wanted_[name] = true;
        result_.unsupported =
            audit(graph_, [this](const std::string& name) { return wanted_.contains(name); });
        if (!result_.unsupported.empty()) return result_;
        check_replay();
        if (options_.gradients) check_gradients();
        return result_;
    }

private:
    model::Model load() const {
        model::LoadOptions load;
        load.mmap = false;  // finite differences change the weights in place
        load.use_extra_bufts = false;
        return model::Model::load(path_, load);
    }

    Vector llama_logits(const std::function<void(ggml_tensor*)>& on_weight) const {
        model::CaptureOptions capture;
        capture.n_sequences = options_.n_sequences;
        capture.n_threads =
            1;  // tiny models: threads that wait for each other cost more than they give
        capture.compute_logits = true;
        capture.on_weight = on_weight;
        return model::capture(model_, tokens_, capture).logits;
    }

    Executor make(bool gradients, bool exact_gelu, bool stored_types = false) const {
        ExecutorOptions options;
        options.n_threads = 1;
        options.gradients = gradients;
        options.exact_gelu = exact_gelu;
        options.memory_bytes = options_.memory_bytes;
        options.stored_types = stored_types;
        options.moments = !gradients && result_.is_routed;
        options.logits_slice = 7;  // does not divide the tokens: slices are cut to fit
        options.wants_gradient = [this](const WeightInfo& info) {
            return wanted_.contains(info.name);
        };
        return Executor(graph_, std::move(options));
    }

    void check_replay() {
        result_.smooth = !has_gelu_table(graph_);
        result_.is_routed = has_routing(graph_);
        const Vector expected = llama_logits({});
        Executor executor = make(false, false, options_.stored_types);
        FileWeights weights(file_, executor.weights());
        result_.replay_error = relative_error(run_logits(executor, weights, tokens_), expected);
        if (result_.smooth) return;
        Executor exact = make(false, true);
        result_.exact_gelu_error = relative_error(run_logits(exact, weights, tokens_), expected);
    }

    void check_gradients() {
        Executor executor = make(true, false);
        FileWeights weights(file_, executor.weights());
        Random random(12, "projection");
        projection_.resize(static_cast<size_t>(executor.n_vocab() * options_.n_tokens));
        for (float& r : projection_) r = static_cast<float>(random.normal());
        std::map<int, Directions> directions;
        for (size_t i = 0; i < executor.weights().size(); ++i) {
            const int index = static_cast<int>(i);
            if (!wanted_.contains(executor.weights()[i].name)) continue;
            directions.emplace(
                index, random_directions(executor.weights()[i].name, weights.values(index)));
        }
        const Vector logits = llama_logits({});
        double norm = 0;
        for (size_t i = 0; i < logits.size(); ++i)
            norm +=
                std::pow(static_cast<double>(logits[i]) * static_cast<double>(projection_[i]), 2);
        // A few roundings of 2^-24 on the way to each logit, independent of each other.
        logits_noise_ = 4 * 6e-8 * std::sqrt(norm);
        ProjectionLoss loss(projection_, executor.n_vocab());
        DirectionSink sink(directions, executor.weights());
        const std::span<const int32_t> batch[] = {tokens_};
        executor.step(batch, weights, loss, sink);
        Executor replay = make(false, true);
        loss_at(replay, weights, -1, {}, 0);
        routing_ = last_routing_;
        for (const auto& [index, all] : directions) {
            // The direction with the largest derivative is the one that the rounding of the logits
            // disturbs least.
            const std::vector<double>& derivatives = sink.derivative[index];
            size_t best = 0;
            for (size_t k = 0; k < derivatives.size(); ++k) {
                if (std::abs(derivatives[k]) > std::abs(derivatives[best])) best = k;
            }
            const double analytic = derivatives.empty() ? NAN : derivatives[best];
            // The first tensor moves everything behind it. Where tokens are routed, steps have to
            // be small, and none would be left for the weakest derivatives.
            if (!result_.is_routed && index == directions.begin()->first)
                logits_noise_ =
                    std::max(logits_noise_, roughness(replay, weights, index, all[best], analytic));
            check_tensor(replay, weights, index, all[best], analytic);
        }
    }

    /// Standard deviation of the loss about its tangent over steps so small that there is nothing
    /// but rounding. Layers that run several times (hrm_text) amplify that of the logits 20 times.
    double roughness(Executor& replay, FileWeights& weights, int index, const Vector& d,
                     double analytic) {
        double sum = 0.0, square = 0.0, origin = 0.0;
        int n = 0;
        for (const float step :
             {0.0F, 1e-7F, -1e-7F, 2e-7F, -2e-7F, 4e-7F, -4e-7F, 8e-7F, -8e-7F}) {
            const double value = loss_at(replay, weights, index, d, step) -
                                 (step == 0.0F ? 0.0 : static_cast<double>(step) * analytic);
            if (last_routing_ != routing_ || !std::isfinite(value)) continue;
            if (n == 0) origin = value;  // keeps the squares small
            sum += value - origin;
            square += (value - origin) * (value - origin);
            ++n;
        }
        return n < 3 ? 0.0 : std::sqrt((square - sum * sum / n) / (n - 1));
    }

    static Directions random_directions(const std::string& name, const Vector& w) {
        constexpr int kDirections = 8;
        double square = 0;
        for (const float x : w) square += static_cast<double>(x) * static_cast<double>(x);
        const double rms = std::sqrt(square / static_cast<double>(w.size()));
        Random random(13, name);
        Directions all(kDirections, Vector(w.size()));
        for (Vector& d : all) {
            for (float& x : d) x = static_cast<float>(rms * random.normal());
        }
        return all;
    }

    /// index -1: nothing is moved. Sets last_routing_. Where tokens are routed, the replay is run,
    /// since its routing can be seen.
    double loss_at(Executor& replay, FileWeights& weights, int index, const Vector& d, float step) {
        if (result_.smooth && !result_.is_routed && !options_.stored_types) {
            if (index < 0) return project(llama_logits({}));
            const std::string& name = replay.weights()[static_cast<size_t>(index)].name;
            const Vector& w = weights.values(index);
            const auto set = [&](ggml_tensor* tensor, float s) {
                if (name != tensor->name) return;
                auto* data = static_cast<float*>(tensor->data);
                for (size_t i = 0; i < w.size(); ++i) data[i] = w[i] + s * d[i];
            };
            const Vector logits = llama_logits([&](ggml_tensor* tensor) { set(tensor, step); });
            llama_restore([&](ggml_tensor* tensor) { set(tensor, 0); });
            return project(logits);
        }
        weights.move(index, &d, step);
        RoutingSink routing;
        const double value =
            project(run_logits(replay, weights, tokens_, result_.is_routed ? &routing : nullptr));
        last_routing_ = routing.fingerprint;
        weights.move(-1, nullptr, 0);
        return value;
    }

    void llama_restore(const std::function<void(ggml_tensor*)>& on_weight) const {
        model::CaptureOptions capture;
        capture.n_threads = 1;
        capture.on_weight = on_weight;
        model::capture(model_, tokens_, capture);
    }

    double project(const Vector& logits) const {
        double sum = 0;
        for (size_t i = 0; i < logits.size(); ++i)
            sum += static_cast<double>(logits[i]) * static_cast<double>(projection_[i]);
        return sum;
    }

    /// Central difference along d, or NaN where a step changes a routing decision.
    double difference(Executor& replay, FileWeights& weights, int index, const Vector& d, float h) {
        double sum = 0;
        for (const float step : {h, -h}) {
            sum += (step > 0 ? 1 : -1) * loss_at(replay, weights, index, d, step);
            if (last_routing_ != routing_) return NAN;
        }
        return sum / (2.0 * static_cast<double>(h));
    }

    void check_tensor(Executor& replay, FileWeights& weights, int index, const Vector& d,
                      double analytic) {
        TensorCheck best;
        best.name = replay.weights()[static_cast<size_t>(index)].name;
        best.analytic = analytic;
        best.numeric = NAN;
        // Richardson-extrapolated central differences with the smallest step that the rounding of
        // the logits allows: small steps stay between the kinks of RELU and CLAMP and leave the
        // routing as it is, large ones rise above the rounding.
        float h = kFirstStep;
        // Weak derivatives (queries and keys where attention is nearly even) begin larger.
        while (h < kLargestStep && noise_of(h / 2, analytic) > kWeakNoise) h *= 2;
        double coarse = difference(replay, weights, index, d, h);
        for (; noise_of(h / 2, analytic) < kUselessNoise; h /= 2) {
            const double fine = difference(replay, weights, index, d, h / 2);
            const double numeric = (4 * fine - coarse) / 3;
            coarse = fine;
            if (!std::isfinite(numeric)) {
                ++best.n_rejected;
                continue;
            }
            best.numeric = numeric;
            best.noise = noise_of(h / 2, numeric);
            if (best.noise > 1e-3) break;
        }
        best.difference = std::abs(analytic - best.numeric) / std::abs(best.numeric);
        best.error = best.difference > 3 * best.noise ? best.difference - 3 * best.noise : 0.0;
        if (!(best.difference >= 0)) best.error = NAN;
        result_.tensors.push_back(best);
    }

    /// Relative noise of a derivative from steps of h: the rounding of the logits, and that of the
    /// moved weights themselves, which is part of the step.
    double noise_of(float h, double derivative) const {
        return (logits_noise_ / std::abs(derivative) + 6e-8) / static_cast<double>(h);
    }

    static constexpr float kFirstStep = 0.08F;
    static constexpr float kLargestStep = 0.64F;
    static constexpr double kWeakNoise = 2e-2;
    static constexpr double kUselessNoise = 1e-1;

    std::filesystem::path path_;
    CheckOptions options_;
    gguf::File file_;
    model::Model model_;
    std::vector<int32_t> tokens_;
    graph::Graph graph_;
    std::map<std::string, bool> wanted_;
    Vector projection_;
    double logits_noise_ = 0;
    uint64_t routing_ = 0;       // of the source model
    uint64_t last_routing_ = 0;  // of the last loss
    ModelCheck result_;
};

}  // namespace

double ModelCheck::worst_error() const {
    double worst = 0;
    for (const TensorCheck& tensor : tensors) {
        if (std::isnan(tensor.error)) return NAN;
        worst = std::max(worst, tensor.error);
    }
    return worst;
}

ModelCheck check_model(const std::filesystem::path& path, const CheckOptions& options) {
    return Checker(path, options).run();
}

}  // namespace voodoo::engine
