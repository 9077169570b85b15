#include "pipeline/feedback_stage.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "gguf/writer.h"
#include "pipeline/stage_timer.h"
#include "pipeline/weights.h"
#include "quant/feedback.h"

namespace voodoo::pipeline {
namespace {

std::filesystem::path adjusted_path(const RunDir& run, const std::string& hash) {
    return run.file("adjusted") / (hash + ".f32");
}

std::string_view bytes_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Whether every adjusted tensor's rows lie in the run directory.
bool has_adjusted_rows(const RunDir& run, const FinalWeights& weights) {
    return std::all_of(weights.adjusted_hash.begin(), weights.adjusted_hash.end(),
                       [&](const std::string& hash) {
                           return hash.empty() || std::filesystem::exists(adjusted_path(run, hash));
                       });
}

/// Second moments of matmul inputs, by the weight that leads its group.
class FullMoments : public engine::MomentSink {
public:
    FullMoments(const std::vector<engine::WeightInfo>& weights, std::function<bool(int)> is_leader)
        : weights_(weights), is_leader_(std::move(is_leader)) {}

    void take(int, int64_t, const float*, int64_t, int64_t, int, int) override {}
    void take_full(int index, const float* h, int64_t n_columns, int ith, int nth) override {
        Sums& sums = sums_[static_cast<size_t>(index)];
        const int64_t n = sums.n * sums.n;
        for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; ++i)
            sums.h[static_cast<size_t>(i)] += static_cast<double>(h[i]);
        if (ith == 0) sums.count += n_columns;
    }
    void begin_segment(const std::vector<int>& weights) override {
        sums_.assign(weights_.size(), {});
        for (const int index : weights) {
            Sums& sums = sums_[static_cast<size_t>(index)];
            sums.n = weights_[static_cast<size_t>(index)].ne[0];
            if (is_leader_(index)) sums.h.assign(static_cast<size_t>(sums.n * sums.n), 0.0);
        }
    }
    /// E[x x'], row-major; empty if nothing was seen.
    std::vector<float> mean(int leader) const {
        const Sums& sums = sums_[static_cast<size_t>(leader)];
        std::vector<float> h;
        if (sums.count == 0) return h;
        h.reserve(sums.h.size());
        for (const double x : sums.h)
            h.push_back(static_cast<float>(x / static_cast<double>(sums.count)));
        return h;
    }

private:
    struct Sums {
        int64_t n = 0;
        int64_t count = 0;
        std::vector<double> h;
    };
    const std::vector<engine::WeightInfo>& weights_;
    std::function<bool(int)> is_leader_;
    std::vector<Sums> sums_;
};

/// The head's inputs are the teacher's hidden states: H = E[h h'] over the training tokens, through
/// the same engine product as everywhere else would need the tail; in double here, once.
std::vector<float> head_moments(const Calibration& calibration, int n_batches, ThreadPool& pool) {
    const int64_t n = calibration.n_hidden;
    std::vector<double> sums(static_cast<size_t>(n * n), 0.0);
    for (int b = 0; b < n_batches; ++b) {
        const std::span<const float> states = calibration.states(b);
        const int64_t n_tokens = static_cast<int64_t>(states.size()) / n;
        pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
            std::vector<float> row(static_cast<size_t>(n));
            constexpr int64_t kTokens = 64;  // float sums of so many products, then double
            for (int64_t i = begin; i < end; ++i) {
                for (int64_t t0 = 0; t0 < n_tokens; t0 += kTokens) {
                    std::fill(row.begin(), row.end(), 0.0F);
                    const int64_t t1 = std::min(t0 + kTokens, n_tokens);
                    for (int64_t t = t0; t < t1; ++t) {
                        const float* x = states.data() + t * n;
                        const float xi = x[i];
                        for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += xi * x[j];
                    }
                    double* to = sums.data() + i * n;
                    for (int64_t j = 0; j < n; ++j)
                        to[j] += static_cast<double>(row[static_cast<size_t>(j)]);
                }
            }
        });
        calibration.drop_states(b);
    }
    const double count =
        static_cast<double>(n_batches) * static_cast<double>(calibration.batch_tokens());
    std::vector<float> h;
    h.reserve(sums.size());
    for (const double x : sums) h.push_back(static_cast<float>(x / count));
    return h;
}

/// What the stage has decided so far, kept after each tensor: a killed run goes on behind the last
/// one, with the same bytes, since a tensor depends only on those before it.
class Progress {
public:
    struct Outcome {
        std::string hash;        ///< of the adjusted rows; empty: the plain encoding stays
        double log_ratio = 0.0;  ///< of the output error to the plain encoding's
    };

    Progress(RunDir& run, std::string fingerprint)
        : run_(run), fingerprint_(std::move(fingerprint)) {
        const auto record = run_.find_stage(kRecord, fingerprint_);
        if (!record || !record->contains("tensors")) return;
        for (const auto& [name, outcome] : record->at("tensors").items())
            tensors_[name] = {outcome.at(0).get<std::string>(), outcome.at(1).get<double>()};
    }

    const Outcome* find(const std::string& tensor) const {
        const auto found = tensors_.find(tensor);
        return found == tensors_.end() ? nullptr : &found->second;
    }
    void add(const std::string& tensor, Outcome outcome) {
        tensors_[tensor] = std::move(outcome);
        nlohmann::json record;
        for (const auto& [name, done] : tensors_)
            record["tensors"][name] = {done.hash, done.log_ratio};
        run_.finish_stage(kRecord, fingerprint_, std::move(record));
    }

private:
    static constexpr const char* kRecord = "feedback-begun";
    RunDir& run_;
    std::string fingerprint_;
    std::map<std::string, Outcome> tensors_;
};

class Feedback {
public:
    Feedback(Workbench& bench, const Calibration& calibration, Candidates& candidates,
             const std::vector<ggml_type>& types, FinalWeights& weights, RunDir& run,
             const std::string& fingerprint, Observer& observer, const Cancellation& cancellation)
        : bench_(bench),
          calibration_(calibration),
          candidates_(candidates),
          types_(types),
          final_(weights),
          run_(run),
          progress_(run, fingerprint),
          observer_(observer),
          cancellation_(cancellation),
          n_batches_(static_cast<int>(
              std::clamp<int64_t>(bench.settings().feedback_tokens / calibration.batch_tokens(), 1,
                                  calibration.n_train))),
          executor_(bench.capture(calibration.n_sequences, calibration.chunk_len, false),
                    executor_options(bench)),
          student_(bench.file(), executor_.weights(), bench.pool()),
          moments_(executor_.weights(),
                   [this](int index) { return executor_.moment_leader(index) == index; }) {}

    void run(StageTimer& timer) {
        tied_embedding(timer);
        std::vector<std::span<const int32_t>> batches;
        batches.reserve(static_cast<size_t>(n_batches_));
        for (int b = 0; b < n_batches_; ++b) batches.push_back(calibration_.batch(b));
        executor_.forward_by_segment(
            batches, student_, moments_,
            [&](const std::vector<int>& weights) {
                bool changed = false;
                for (const int index : weights) changed |= encode_weight(index, timer);
                factors_.clear();
                return changed;
            },
            &cancellation_);
        observer_.log(LogLevel::info,
                      fmt::format("error feedback: {} of {} tensors, output error {:.3f} of the "
                                  "plain encoding's (geometric mean)",
                                  n_done_, types_.size(),
                                  n_done_ > 0 ? std::exp(sum_log_ratio_ / n_done_) : 1.0));
        if (n_restored_ > 0)
            observer_.log(LogLevel::info,
                          fmt::format("{} of these tensors were encoded before the run was stopped",
                                      n_restored_));
    }

private:
    static engine::ExecutorOptions executor_options(const Workbench& bench) {
        engine::ExecutorOptions options;
        options.n_threads = bench.settings().n_threads;
        options.memory_bytes = 1;  // the smallest segments: a layer at a time
        options.gradients = false;
        options.moments = true;
        options.full_moments = true;
        return options;
    }

    void tied_embedding(StageTimer& timer) {
        const int head = executor_.head_weight();
        if (head < 0) return;
        std::vector<float> h = head_moments(calibration_, n_batches_, bench_.pool());
        const int64_t n = calibration_.n_hidden;
        if (executor_.weights()[static_cast<size_t>(head)].n_uses > 1) {
            // As a look-up table its errors count in every direction alike.
            double trace = 0.0;
            for (int64_t i = 0; i < n; ++i)
                trace += static_cast<double>(h[static_cast<size_t>(i * (n + 1))]);
            const auto ridge = static_cast<float>(kLookupShare * trace / static_cast<double>(n));
            for (int64_t i = 0; i < n; ++i) h[static_cast<size_t>(i * (n + 1))] += ridge;
        }
        encode_tensor(head, head, h, timer);
        factors_.clear();
    }

    bool encode_weight(int index, StageTimer& timer) {
        const int leader = executor_.moment_leader(index);
        if (leader < 0 || index == executor_.head_weight()) return false;
        const std::vector<float> h = moments_.mean(leader);
        return !h.empty() && encode_tensor(index, leader, h, timer);
    }

    /// Blocks of 256 columns in parts, without sweeps: six encodings of the tensor. Each sweep
    /// would add four; blocks of 32 are encoded once a sweep (docs/search.md).
    static quant::FeedbackOptions feedback_options(ggml_type type) {
        quant::FeedbackOptions options;
        const quant::FeedbackColumns columns = quant::feedback_columns(type, options);
        if (columns.group < columns.block) options.n_sweeps = 0;
        return options;
    }

    /// Weights with the same input and blocks of the same width share their factors.
    const quant::FeedbackFactors& factors(int leader, ggml_type type, const std::vector<float>& h,
                                          int64_t n) {
        const quant::FeedbackOptions options = feedback_options(type);
        const quant::FeedbackColumns columns = quant::feedback_columns(type, options);
        return factors_
            .try_emplace({leader, columns.block, columns.group}, h.data(), n, columns,
                         options.damping, options.order, bench_.pool(), &cancellation_)
            .first->second;
    }

    bool encode_tensor(int index, int leader, const std::vector<float>& h, StageTimer& timer) {
        const std::string& name = executor_.weights()[static_cast<size_t>(index)].name;
        const int found = bench_.find_tensor(name);
        if (found < 0) return false;
        const auto t = static_cast<size_t>(found);
        const Tensor& tensor = bench_.tensors()[t];
        if (tensor.shape.n_mat != 1 || !ggml_is_quantized(types_[t])) return false;
        cancellation_.check();
        if (restored(t, name)) {
            ++n_restored_;
        } else {
            progress_.add(name, encode(t, leader, h));
        }
        if (const Progress::Outcome& outcome = *progress_.find(name); !outcome.hash.empty()) {
            ++n_done_;
            sum_log_ratio_ += outcome.log_ratio;
        }
        student_.set(name, {{final_.tensors[t].view()}, {1.0F}});
        timer.progress(++n_seen_, name);
        return true;
    }

    /// Takes a tensor from a run that was killed.
    bool restored(size_t t, const std::string& name) {
        const Progress::Outcome* outcome = progress_.find(name);
        if (outcome == nullptr) return false;
        if (outcome->hash.empty()) return true;
        auto stored = candidates_.find_adjusted(t, types_[t], outcome->hash);
        if (!stored ||
            (writes_adjusted() && !std::filesystem::exists(adjusted_path(run_, outcome->hash))))
            return false;
        final_.tensors[t] = *std::move(stored);
        final_.adjusted_hash[t] = outcome->hash;
        return true;
    }

    Progress::Outcome encode(size_t t, int leader, const std::vector<float>& h) {
        const Tensor& tensor = bench_.tensors()[t];
        std::vector<float> source(static_cast<size_t>(tensor.shape.n_elements()));
        quant::to_float(tensor.info->type, bench_.file().data(*tensor.info).data(), source.data(),
                        tensor.shape.n_elements(), bench_.pool());
        std::vector<float> adjusted(source.size());
        const std::vector<float>& importance = candidates_.importance(t);
        const quant::FeedbackResult result =
            quant::feedback(bench_.encoder(), types_[t], source.data(), tensor.shape.n_rows,
                            factors(leader, types_[t], h, tensor.shape.n_per_row),
                            importance.empty() ? nullptr : importance.data(), adjusted.data(),
                            feedback_options(types_[t]), bench_.pool(), &cancellation_);
        if (!result.usable || result.error >= result.error_plain) return {};
        auto [stored, hash] = candidates_.encode_adjusted(t, types_[t], adjusted);
        if (!stored.usable()) return {};
        final_.tensors[t] = std::move(stored);
        if (writes_adjusted()) write_file_atomic(adjusted_path(run_, hash), bytes_of(adjusted));
        final_.adjusted_hash[t] = hash;
        return {std::move(hash), std::log(result.error / result.error_plain)};
    }

    bool writes_adjusted() const { return !bench_.settings().write_adjusted.empty(); }

    /// Weight of the look-up in a tied embedding, as a share of the mean diagonal of the head's H
    /// (measured in docs/results.md).
    static constexpr double kLookupShare = 0.3;

    Workbench& bench_;
    const Calibration& calibration_;
    Candidates& candidates_;
    const std::vector<ggml_type>& types_;
    FinalWeights& final_;
    const RunDir& run_;
    Progress progress_;
    Observer& observer_;
    const Cancellation& cancellation_;
    int n_batches_;
    engine::Executor executor_;
    MixedWeights student_;
    FullMoments moments_;
    // By leader, width of a block and of a group.
    std::map<std::tuple<int, int64_t, int64_t>, quant::FeedbackFactors> factors_;
    int n_restored_ = 0;
    int n_done_ = 0;
    int n_seen_ = 0;
    double sum_log_ratio_ = 0.0;
};

}  // namespace

bool restore_feedback(const Workbench& bench, Candidates& candidates,
                      const std::vector<ggml_type>& types, FinalWeights& weights,
                      const nlohmann::json& hashes) {
    FinalWeights restored = weights;
    for (size_t t = 0; t < types.size(); ++t) {
        const auto found = hashes.find(bench.tensors()[t].name);
        if (found == hashes.end()) continue;
        const auto hash = found->get<std::string>();
        auto stored = candidates.find_adjusted(t, types[t], hash);
        if (!stored) return false;
        restored.tensors[t] = *std::move(stored);
        restored.adjusted_hash[t] = hash;
    }
    weights = std::move(restored);
    return true;
}

void apply_feedback(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                    const std::vector<ggml_type>& types, FinalWeights& weights, RunDir& run,
                    std::vector<StageResult>& results, Observer& observer,
                    const Cancellation& cancellation) {
    Sha256 hash;
    hash.update(fmt::format("feedback 2 {} {} {} {}", bench.fingerprint(), calibration.token_hash,
                            bench.settings().feedback_tokens, bench.encoder().identity()));
    hash.update(sha256_hex(read_file(calibration.imatrix_path)));
    for (const ggml_type type : types) hash.update(fmt::format("{} ", static_cast<int>(type)));
    const std::string fingerprint = hash.hex();
    if (const auto record = run.find_stage("feedback", fingerprint)) {
        FinalWeights restored = weights;
        if (restore_feedback(bench, candidates, types, restored, record->at("adjusted")) &&
            (bench.settings().write_adjusted.empty() || has_adjusted_rows(run, restored))) {
            weights = std::move(restored);
            StageTimer::cached("feedback", results, observer);
            return;
        }
    }
    if (!bench.settings().write_adjusted.empty())
        std::filesystem::create_directories(run.file("adjusted"));
    StageTimer timer("feedback", static_cast<double>(types.size()), "tensors", observer);
    Feedback(bench, calibration, candidates, types, weights, run, fingerprint, observer,
             cancellation)
        .run(timer);
    nlohmann::json adjusted = nlohmann::json::object();
    for (size_t t = 0; t < types.size(); ++t) {
        if (!weights.adjusted_hash[t].empty())
            adjusted[bench.tensors()[t].name] = weights.adjusted_hash[t];
    }
    run.finish_stage("feedback", fingerprint, {{"adjusted", adjusted}});
    timer.finish(results);
}

void write_adjusted_source(const Workbench& bench, const FinalWeights& weights, const RunDir& run,
                           std::vector<StageResult>& results, Observer& observer,
                           const Cancellation& cancellation) {
    std::vector<gguf::PlannedTensor> tensors = gguf::planned_tensors(bench.file().tensors());
    const auto hash_of = [&](const std::string& name) {
        const int t = bench.find_tensor(name);
        return t < 0 ? std::string() : weights.adjusted_hash[static_cast<size_t>(t)];
    };
    for (gguf::PlannedTensor& tensor : tensors) {
        if (!hash_of(tensor.name).empty()) tensor.type = GGML_TYPE_F32;
    }
    gguf::Writer writer(bench.settings().write_adjusted,
                        gguf::without_split_keys(bench.file().metadata()), tensors);
    StageTimer timer("adjusted", static_cast<double>(tensors.size()), "tensors", observer);
    double done = 0;
    for (const gguf::PlannedTensor& tensor : tensors) {
        cancellation.check();
        if (const auto tuned = weights.tuned.find(tensor.name); tuned != weights.tuned.end()) {
            writer.write_tensor(tensor.name, std::as_bytes(std::span(tuned->second)));
        } else if (const std::string hash = hash_of(tensor.name); !hash.empty()) {
            const MappedFile rows(adjusted_path(run, hash));
            writer.write_tensor(tensor.name, rows.bytes());
        } else {
            writer.write_tensor(tensor.name,
                                bench.file().data(*bench.file().find_tensor(tensor.name)));
        }
        timer.progress(++done, tensor.name);
    }
    writer.commit();
    timer.finish(results);
}

}  // namespace voodoo::pipeline
