#include "pipeline/candidates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "pipeline/stage_timer.h"

namespace voodoo::pipeline {
namespace {

quant::SourceTensor source_of(const Workbench& bench, const Tensor& tensor) {
    return {tensor.info->type, bench.file().data(*tensor.info).data(), tensor.shape};
}

/// How far above the chord (in log error) a type is still kept: tensors differ, and the sample has
/// its error.
constexpr double kHullSlack = -0.12;

/// Without the types that another one beats in error at no more bytes.
std::vector<Candidate> without_beaten(std::vector<Candidate> candidates) {
    std::vector<Candidate> kept;
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.sample_error < b.sample_error;
    });
    for (const Candidate& candidate : candidates) {
        if (!kept.empty() && candidate.sample_error >= kept.back().sample_error) continue;
        kept.push_back(candidate);
    }
    return kept;
}

/// Without those either that lie clearly above the chord of their neighbours: mixing these over
/// tensors does as well.
std::vector<Candidate> near_hull(std::vector<Candidate> candidates) {
    std::vector<Candidate> hull = without_beaten(std::move(candidates));
    // Errors fall about as 4^-bits: the chord is drawn in the logarithm, where the hull of good
    // types is nearly straight.
    const auto gain = [&](size_t i) {
        const Candidate &a = hull[i - 1], &b = hull[i], &c = hull[i + 1];
        const double share =
            static_cast<double>(b.bytes - a.bytes) / static_cast<double>(c.bytes - a.bytes);
        const double chord = std::log(a.sample_error) * (1 - share) +
                             std::log(std::max(c.sample_error, 1e-12)) * share;
        return chord - std::log(std::max(b.sample_error, 1e-12));
    };
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 1; i + 1 < hull.size(); ++i) {
            if (gain(i) < kHullSlack) {
                hull.erase(hull.begin() + static_cast<std::ptrdiff_t>(i));
                changed = true;
                break;
            }
        }
    }
    return hull;
}

/// Experts that no calibration token reached. The gate, up and down matrices of one expert count
/// once.
class Unrouted {
public:
    void add(const std::string& tensor, const std::vector<int64_t>& experts) {
        if (experts.empty()) return;
        // "blk.3.ffn_up_exps.weight" -> "blk.3"
        const std::string block = tensor.substr(0, tensor.find('.', tensor.find('.') + 1));
        by_block_[block].insert(experts.begin(), experts.end());
    }

    std::string text() const {
        if (by_block_.empty()) return {};
        size_t n = 0;
        std::string names;
        for (const auto& [block, experts] : by_block_) {
            n += experts.size();
            names += fmt::format("{}{} ({})", names.empty() ? "" : "; ", block,
                                 fmt::join(experts, ", "));
        }
        return fmt::format(
            "{} experts saw no calibration token and are encoded with equal importances, as "
            "llama-quantize does: {}",
            n, names);
    }

private:
    std::map<std::string, std::set<int64_t>> by_block_;
};

}  // namespace

std::vector<ggml_type> allowed_types(const Workbench& bench, const Tensor& tensor,
                                     bool have_imatrix) {
    const Settings& settings = bench.settings();
    std::vector<ggml_type> types;
    if (!tensor.pinned.empty()) {
        if (const auto type = quant::find_type(tensor.pinned)) types.push_back(*type);
        return types;
    }
    for (const quant::TypeInfo& info : quant::all_types()) {
        if (!quant::is_legal(info.type, tensor.shape.n_per_row, have_imatrix,
                             tensor.is_embedding_or_head))
            continue;
        if (!info.runs_matmul || (tensor.is_embedding_or_head && !info.runs_get_rows)) continue;
        if (settings.types.empty()) {
            if (static_cast<double>(info.encode_ns) > settings.max_encode_ns) continue;
            if (info.type == GGML_TYPE_F16 && tensor.info->type != GGML_TYPE_F16)
                continue;  // BF16 serves as well
        } else {
            const bool listed = std::any_of(
                settings.types.begin(), settings.types.end(),
                [&](const std::string& name) { return quant::find_type(name) == info.type; });
            if (!listed) continue;
        }
        types.push_back(info.type);
    }
    if (types.empty()) {
        // A whitelist without a type for these rows: the tensor keeps its source type.
        types.push_back(tensor.info->type);
    }
    return types;
}

SizeRange attainable_range(const Workbench& bench) {
    SizeRange range{bench.fixed_bytes(), bench.fixed_bytes()};
    for (const Tensor& tensor : bench.tensors()) {
        uint64_t smallest = UINT64_MAX;
        uint64_t largest = 0;
        for (const ggml_type type : allowed_types(bench, tensor, bench.gets_importance(tensor))) {
            const uint64_t bytes = bench.padded_bytes(tensor, type);
            smallest = std::min(smallest, bytes);
            largest = std::max(largest, bytes);
        }
        range.min += smallest;
        range.max += largest;
    }
    return range;
}

std::vector<std::string> type_names(const std::vector<Candidate>& candidates) {
    std::vector<std::string> names;
    names.reserve(candidates.size());
    for (const Candidate& candidate : candidates)
        names.emplace_back(quant::type_info(candidate.type).name);
    return names;
}

Candidates::Candidates(Workbench& bench, const Calibration& calibration,
                       const std::filesystem::path& folder, Observer& observer,
                       const Cancellation& cancellation)
    : bench_(bench),
      observer_(observer),
      cancellation_(cancellation),
      store_(folder),
      token_hash_(calibration.token_hash),
      token_counts_(static_cast<size_t>(bench.model().n_vocab()), 0),
      source_hash_(bench.tensors().size()) {
    for (int b = 0; b < calibration.n_train; ++b) {
        for (const int32_t token : calibration.batch(b))
            ++token_counts_[static_cast<size_t>(token)];
    }
    Unrouted unrouted;
    for (const Tensor& tensor : bench.tensors()) {
        quant::Importance importance = calibration.imatrix.importance(tensor.name);
        unrouted.add(tensor.name, importance.unrouted);
        importance_hash_.push_back(quant::importance_hash(importance.values));
        importance_.push_back(std::move(importance.values));
    }
    if (const std::string text = unrouted.text(); !text.empty()) observer.log(LogLevel::warn, text);
}

quant::CandidateKey Candidates::key(size_t tensor, ggml_type type) {
    std::string& hash = source_hash_[tensor];
    if (hash.empty()) hash = quant::source_hash(source_of(bench_, bench_.tensors()[tensor]));
    return key(tensor, type, hash);
}

quant::CandidateKey Candidates::key(size_t tensor, ggml_type type, std::string source_hash) const {
    return {std::move(source_hash), importance_hash_[tensor], type, bench_.tensors()[tensor].shape,
            bench_.encoder().identity()};
}

quant::StoredCandidate Candidates::encoded(size_t tensor, ggml_type type) {
    const std::vector<float>& importance = importance_[tensor];
    return store_.find_or_put(key(tensor, type), source_of(bench_, bench_.tensors()[tensor]),
                              importance.empty() ? nullptr : importance.data(), bench_.encoder(),
                              bench_.pool(), &cancellation_, observer_);
}

bool Candidates::usable(size_t tensor, ggml_type type) {
    return encoded(tensor, type).usable();
}

FinalWeights Candidates::plain(const std::vector<ggml_type>& types) {
    FinalWeights weights;
    for (size_t t = 0; t < types.size(); ++t) {
        weights.tensors.push_back(encoded(t, types[t]));
        if (weights.tensors.back().usable()) continue;
        throw Error(ErrorKind::usage,
                    fmt::format("{} can't be {}: {}", bench_.tensors()[t].name,
                                ggml_type_name(types[t]), weights.tensors.back().reason()));
    }
    weights.adjusted_hash.resize(types.size());
    return weights;
}

std::pair<quant::StoredCandidate, std::string> Candidates::encode_adjusted(
    size_t tensor, ggml_type type, std::span<const float> rows) {
    const quant::SourceTensor source{GGML_TYPE_F32, reinterpret_cast<const std::byte*>(rows.data()),
                                     bench_.tensors()[tensor].shape};
    const std::vector<float>& importance = importance_[tensor];
    const std::string hash = quant::source_hash(source);
    return {store_.find_or_put(key(tensor, type, hash), source,
                               importance.empty() ? nullptr : importance.data(), bench_.encoder(),
                               bench_.pool(), &cancellation_, observer_),
            hash};
}

std::optional<quant::StoredCandidate> Candidates::find_adjusted(size_t tensor, ggml_type type,
                                                                const std::string& hash) {
    return store_.find(key(tensor, type, hash), observer_);
}

const EncodedSample& Candidates::sample(size_t index, const std::vector<ggml_type>& types) {
    EncodedSample& sample = samples_[index];
    const Tensor& tensor = bench_.tensors()[index];
    if (sample.rows.rows.empty())
        sample.rows = sample_rows(bench_, tensor, importance_[index], token_counts_);
    const quant::MatrixShape& shape = sample.rows.shape;
    const float* importance =
        sample.rows.importance.empty() ? nullptr : sample.rows.importance.data();
    for (const ggml_type type : types) {
        if (sample.encoded.contains(type) || sample.barred.contains(type)) continue;
        std::vector<std::byte> bytes(quant::size_bytes(type, shape.n_per_row, shape.total_rows()));
        const quant::EncodeResult result =
            quant::encode(bench_.encoder(), type, sample.rows.source.data(), shape, importance,
                          bytes.data(), bench_.pool(), &cancellation_);
        if (result.usable) {
            sample.encoded.emplace(type, std::move(bytes));
            continue;
        }
        sample.barred.insert(type);
        observer_.log(LogLevel::debug, fmt::format("{} can't be {}: {}", tensor.name,
                                                   quant::type_info(type).name, result.reason));
    }
    return sample;
}

void Candidates::drop_samples(const CandidateTypes& keep) {
    for (auto& [t, sample] : samples_) {
        std::erase_if(sample.encoded, [&, t = t](const auto& entry) {
            return std::none_of(keep[t].begin(), keep[t].end(),
                                [&](const Candidate& c) { return c.type == entry.first; });
        });
    }
}

std::vector<Candidate> Candidates::measure(size_t index, const std::vector<ggml_type>& types) {
    const Tensor& tensor = bench_.tensors()[index];
    const EncodedSample& encoded = sample(index, types);
    const RowSample& rows = encoded.rows;
    const auto reference =
        quant::make_view(GGML_TYPE_F32, reinterpret_cast<const std::byte*>(rows.source.data()),
                         rows.shape.n_per_row);
    std::vector<Candidate> measured;
    for (const ggml_type type : types) {
        const auto found = encoded.encoded.find(type);
        if (found == encoded.encoded.end()) continue;
        const auto view = quant::make_view(type, found->second.data(), rows.shape.n_per_row);
        const quant::ErrorMoments moments = quant::error_moments(
            {&view, 1}, reference, rows.shape,
            rows.importance.empty() ? nullptr : rows.importance.data(), bench_.pool());
        Candidate candidate{type, bench_.padded_bytes(tensor, type), 0.0};
        candidate.sample_error = moments.reference > 0 ? moments.error[0] / moments.reference : 0.0;
        measured.push_back(candidate);
    }
    std::sort(measured.begin(), measured.end(),
              [](const Candidate& a, const Candidate& b) { return a.bytes < b.bytes; });
    return measured;
}

/// Bits per weight that the budget leaves for the tensors of the search.
static double budget_bits(const Workbench& bench, uint64_t budget_bytes) {
    double weights = 0;
    for (const Tensor& tensor : bench.tensors())
        weights += static_cast<double>(tensor.shape.n_elements());
    return 8.0 * (static_cast<double>(budget_bytes) - static_cast<double>(bench.fixed_bytes())) /
           weights;
}

Candidates::Window Candidates::find_window(uint64_t budget_bytes) const {
    const double bits = budget_bits(bench_, budget_bytes);
    Window window{bits - 1.4, bits + 2.6};
    // A sample of rows is cheap in every type, and whatever the budget has left may need a large
    // one. The plain gates encode all types in full.
    if (bench_.settings().layout != LayoutMethod::gates_plain) window.max_bits = INFINITY;
    // Widened until the budget can be met with some slack, so that the choice is not forced.
    for (; window.min_bits > 0; window.min_bits -= 0.5, window.max_bits += 0.5) {
        uint64_t smallest = bench_.fixed_bytes();
        for (size_t t = 0; t < bench_.tensors().size(); ++t) {
            uint64_t bytes = UINT64_MAX;
            for (const ggml_type type : types_in_window(t, window))
                bytes = std::min(bytes, bench_.padded_bytes(bench_.tensors()[t], type));
            smallest += bytes;
        }
        if (static_cast<double>(smallest) <= 0.93 * static_cast<double>(budget_bytes)) break;
    }
    return window;
}

std::vector<ggml_type> Candidates::types_in_window(size_t tensor, const Window& window) const {
    const std::vector<ggml_type> all =
        allowed_types(bench_, bench_.tensors()[tensor], !importance_[tensor].empty());
    std::vector<ggml_type> types;
    ggml_type above = all.front();
    double above_bits = INFINITY;
    for (const ggml_type type : all) {
        const double bits = quant::type_info(type).bits_per_weight();
        if (bits >= window.min_bits && bits <= window.max_bits) types.push_back(type);
        if (bits >= window.min_bits && bits < above_bits) {
            above = type;
            above_bits = bits;
        }
    }
    // Rows that no type of the window fits take the next larger one.
    if (types.empty()) types.push_back(above);
    return types;
}

CandidateTypes Candidates::measure_types(uint64_t budget_bytes, RunDir& run,
                                         std::vector<StageResult>& results) {
    const Window window = find_window(budget_bytes);
    Sha256 hash;
    hash.update("row sample 2 " + bench_.fingerprint() + bench_.encoder().identity() + token_hash_);
    for (size_t t = 0; t < bench_.tensors().size(); ++t) {
        hash.update(importance_hash_[t]);
        for (const ggml_type type : types_in_window(t, window))
            hash.update(fmt::format("{} ", static_cast<int>(type)));
    }
    const std::string fingerprint = hash.hex();
    CandidateTypes types;
    if (const auto record = run.find_stage("types", fingerprint)) {
        for (const auto& tensor : (*record)["tensors"]) {
            types.emplace_back();
            for (const auto& c : tensor)
                types.back().push_back({static_cast<ggml_type>(c[0].get<int>()),
                                        c[1].get<uint64_t>(), c[2].get<double>()});
        }
        StageTimer::cached("types", results, observer_);
        return types;
    }
    StageTimer timer("types", static_cast<double>(bench_.tensors().size()), "tensors", observer_);
    nlohmann::json record;
    for (size_t t = 0; t < bench_.tensors().size(); ++t) {
        cancellation_.check();
        types.push_back(measure(t, types_in_window(t, window)));
        nlohmann::json row = nlohmann::json::array();
        for (const Candidate& c : types.back())
            row.push_back({static_cast<int>(c.type), c.bytes, c.sample_error});
        record["tensors"].push_back(std::move(row));
        timer.progress(static_cast<double>(t + 1));
    }
    run.finish_stage("types", fingerprint, std::move(record));
    timer.finish(results);
    return types;
}

CandidateTypes Candidates::prune(const CandidateTypes& all, Pruning pruning) const {
    CandidateTypes kept;
    size_t n_all = 0, n_kept = 0;
    for (size_t t = 0; t < all.size(); ++t) {
        kept.push_back(pruning == Pruning::beaten ? without_beaten(all[t]) : near_hull(all[t]));
        n_all += all[t].size();
        n_kept += kept.back().size();
    }
    observer_.log(LogLevel::info,
                  fmt::format("{} of {} tensor types may win; the others are beaten at fewer bytes",
                              n_kept, n_all));
    return kept;
}

void Candidates::encode_all(CandidateTypes& types, std::vector<StageResult>& results) {
    double total = 0;
    for (size_t t = 0; t < types.size(); ++t) {
        for (const Candidate& c : types[t])
            total += static_cast<double>(bench_.tensors()[t].shape.n_elements()) *
                     static_cast<double>(quant::type_info(c.type).encode_ns);
    }
    StageTimer timer("candidates", total, "work", observer_);
    double done = 0;
    for (size_t t = 0; t < types.size(); ++t) {
        const Tensor& tensor = bench_.tensors()[t];
        std::erase_if(types[t], [&](const Candidate& c) {
            cancellation_.check();
            const quant::StoredCandidate stored = encoded(t, c.type);
            stored.drop();
            done += static_cast<double>(tensor.shape.n_elements()) *
                    static_cast<double>(quant::type_info(c.type).encode_ns);
            timer.progress(done, tensor.name);
            if (!stored.usable())
                observer_.log(LogLevel::warn,
                              fmt::format("{} can't be {}: {}", tensor.name,
                                          quant::type_info(c.type).name, stored.reason()));
            return !stored.usable();
        });
        if (types[t].empty())
            throw Error(ErrorKind::bad_file, "no type can represent this tensor", tensor.name);
        bench_.file().drop(*tensor.info);
    }
    timer.finish(results);
}

}  // namespace voodoo::pipeline
