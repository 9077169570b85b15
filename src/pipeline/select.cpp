#include "pipeline/select.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "pipeline/score.h"
#include "pipeline/stage_timer.h"
#include "search/compare.h"
#include "search/uniform_mix.h"

namespace voodoo::pipeline {
namespace {

class Selector {
public:
    Selector(Workbench& bench, const Calibration& calibration, Candidates& candidates,
             const CandidateTypes& types, const CandidateTypes& all_types,
             const std::vector<SearchValues>& searches, const RunDir& run, Observer& observer,
             const Cancellation& cancellation)
        : bench_(bench),
          calibration_(calibration),
          candidates_(candidates),
          types_(types),
          all_types_(all_types),
          searches_(searches),
          run_(run),
          observer_(observer),
          cancellation_(cancellation) {}

    /// Compares the layouts of the searches with the preset and the mixes, by measured KL.
    void compare(Selection& selection, Teacher& teacher) {
        n_searched_ = selection.layouts.size();
        add_preset(selection.layouts);
        add_mixes(selection.layouts);
        Validator validator(bench_, calibration_, teacher);
        for (Layout& layout : selection.layouts) {
            layout.token_kl = measured(validator, layout);
            const MeanKl kl = mean_kl(layout.token_kl, calibration_.chunk_len);
            observer_.log(LogLevel::info,
                          fmt::format("{}: {} bytes, validation KL {:.5f} +- {:.5f}", layout.name,
                                      layout.file_bytes, kl.mean, kl.error));
        }
        choose(selection);
    }

    /// One encoded layout per search; equal ones once. Without settings.compare that of the first
    /// search alone.
    std::vector<Layout> projections() const {
        std::vector<Layout> layouts;
        for (const SearchValues& search : searches_) {
            Layout layout = encodable(search);
            const bool known = std::any_of(layouts.begin(), layouts.end(), [&](const Layout& l) {
                return l.types == layout.types;
            });
            if (!known) layouts.push_back(std::move(layout));
            if (!bench_.settings().compare) break;
        }
        return layouts;
    }

private:
    Layout layout_of(std::string name, std::vector<ggml_type> types) const {
        std::map<std::string, ggml_type> by_name;
        for (size_t t = 0; t < types.size(); ++t)
            by_name.emplace(bench_.tensors()[t].name, types[t]);
        Layout layout;
        layout.name = std::move(name);
        layout.types = std::move(types);
        layout.file_bytes = bench_.output_size(by_name);
        return layout;
    }

    Layout project(const SearchValues& search, const CandidateTypes& types) const {
        const uint64_t budget = bench_.target_bytes();
        const search::BudgetSolver by_value = budget_solver(bench_, types, search.values);
        search::BudgetSolution solution = by_value.solve(budget);
        solution = by_value.fill(solution.choice, budget);
        const search::BudgetSolver filler = budget_solver(bench_, types, search.fill);
        solution = filler.fill(solution.choice, budget);
        if (!filler.verify(solution.choice, budget).ok())
            observer_.log(LogLevel::warn, "a projection leaves an upgrade unused");
        std::vector<ggml_type> chosen;
        for (size_t t = 0; t < types.size(); ++t)
            chosen.push_back(types[t][solution.choice[t]].type);
        Layout layout = layout_of(search.name, std::move(chosen));
        for (size_t t = 0; search.are_costs && t < types.size(); ++t)
            layout.predicted_kl += search.values[t][solution.choice[t]];
        return layout;
    }

    /// Projects and encodes. A type that ggml can represent the sampled rows in, but not the whole
    /// tensor, shows only here: it is dropped and the budget divided again.
    Layout encodable(SearchValues search) const {
        CandidateTypes types = types_;
        for (;;) {
            Layout layout = project(search, types);
            bool complete = true;
            for (size_t t = 0; t < types.size(); ++t) {
                cancellation_.check();
                if (candidates_.usable(t, layout.types[t])) continue;
                complete = false;
                drop(t, layout.types[t], types, search);
            }
            if (complete) return layout;
        }
    }

    void drop(size_t t, ggml_type type, CandidateTypes& types, SearchValues& search) const {
        const std::string what =
            fmt::format("{} can't be {}: {}", bench_.tensors()[t].name, quant::type_info(type).name,
                        candidates_.encoded(t, type).reason());
        if (types[t].size() == 1) throw Error(ErrorKind::usage, what, "", "allow more --types");
        observer_.log(LogLevel::warn, what + "; another type is taken");
        const auto at = std::find_if(types[t].begin(), types[t].end(),
                                     [&](const Candidate& c) { return c.type == type; });
        const auto k = at - types[t].begin();
        types[t].erase(at);
        search.values[t].erase(search.values[t].begin() + k);
        search.fill[t].erase(search.fill[t].begin() + k);
    }

    /// The largest preset that is not larger than the target, with the types that llama-quantize
    /// gives.
    void add_preset(std::vector<Layout>& layouts) const {
        const uint64_t budget = bench_.target_bytes();
        Layout best;
        for (const model::Preset& preset : model::presets()) {
            auto types = preset_types(preset);
            if (!types) continue;
            Layout layout = layout_of(fmt::format("preset {}", preset.name), std::move(*types));
            if (layout.file_bytes <= budget && layout.file_bytes > best.file_bytes)
                best = std::move(layout);
        }
        if (best.types.empty()) {
            observer_.log(
                LogLevel::info,
                "no preset of llama-quantize is as small as this and has only allowed types");
            return;
        }
        encode_and_add(std::move(best), layouts);
    }

    /// A preset's types with the user's pins. Nothing if the preset is not for these rows or uses a
    /// type that is not whitelisted: such a plan may not win.
    std::optional<std::vector<ggml_type>> preset_types(const model::Preset& preset) const {
        const auto made = try_preset_layout(bench_, preset.name);
        if (!made) return std::nullopt;
        std::map<std::string, ggml_type> by_name;
        for (const auto& tensor : made->types) by_name[tensor.name] = tensor.type;
        std::vector<ggml_type> types;
        for (const Tensor& tensor : bench_.tensors()) {
            const auto found = by_name.find(tensor.name);
            ggml_type type = found == by_name.end() ? tensor.info->type : found->second;
            if (!tensor.pinned.empty() || !bench_.settings().types.empty()) {
                const std::vector<ggml_type> allowed =
                    allowed_types(bench_, tensor, bench_.gets_importance(tensor));
                if (!tensor.pinned.empty()) type = allowed.front();
                if (std::find(allowed.begin(), allowed.end(), type) == allowed.end()) {
                    return std::nullopt;
                }
            }
            types.push_back(type);
        }
        return types;
    }

    void add_mixes(std::vector<Layout>& layouts) const {
        std::vector<search::MixTensor> tensors;
        for (size_t t = 0; t < all_types_.size(); ++t) {
            search::MixTensor tensor;
            tensor.name = bench_.tensors()[t].name;
            tensor.types = type_names(all_types_[t]);
            for (const Candidate& c : all_types_[t]) tensor.bytes.push_back(c.bytes);
            tensors.push_back(std::move(tensor));
        }
        // The types that people mix by hand, those of the usual presets; each measured pair is the
        // best of its kind at this size.
        std::vector<std::string> order;
        for (const quant::TypeInfo& info : quant::all_types()) {
            const bool usual = info.type == GGML_TYPE_Q2_K || info.type == GGML_TYPE_Q3_K ||
                               info.type == GGML_TYPE_IQ4_XS || info.type == GGML_TYPE_IQ4_NL ||
                               info.type == GGML_TYPE_Q4_K || info.type == GGML_TYPE_Q5_K ||
                               info.type == GGML_TYPE_Q5_0 || info.type == GGML_TYPE_Q6_K ||
                               info.type == GGML_TYPE_Q8_0 || info.type == GGML_TYPE_IQ3_XXS ||
                               info.type == GGML_TYPE_IQ3_S;
            if (usual) order.emplace_back(info.name);
        }
        try {
            for (const auto& mix : search::uniform_mixes(tensors, order, bench_.fixed_bytes(),
                                                         bench_.target_bytes())) {
                std::vector<ggml_type> types;
                for (const std::string& name : mix.types) types.push_back(*quant::find_type(name));
                encode_and_add(layout_of("mix " + mix.name, std::move(types)), layouts);
            }
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::infeasible_budget) throw;
            observer_.log(LogLevel::info, "no mix of two usual types is as small as this");
        }
    }

    /// KL of the validation tokens; kept in the run directory, since other sizes and a run that
    /// goes on meet the same layouts again.
    std::vector<float> measured(Validator& validator, const Layout& layout) const {
        Sha256 hash;
        hash.update(fmt::format("validation {} {} {}", bench_.fingerprint(),
                                calibration_.token_hash, bench_.encoder().identity()));
        hash.update(sha256_hex(read_file(calibration_.imatrix_path)));
        for (const ggml_type type : layout.types)
            hash.update(fmt::format("{} ", static_cast<int>(type)));
        const auto n_tokens = static_cast<size_t>(calibration_.n_valid) *
                              static_cast<size_t>(calibration_.batch_tokens());
        const std::filesystem::path path = run_.file("validation") / (hash.hex() + ".f32");
        if (std::filesystem::exists(path)) {
            const std::string bytes = read_file(path);
            std::vector<float> kl(bytes.size() / sizeof(float));
            std::memcpy(kl.data(), bytes.data(), kl.size() * sizeof(float));
            if (kl.size() == n_tokens) return kl;
        }
        std::vector<float> kl = validator.token_kl(candidates_.plain(layout.types), cancellation_);
        std::filesystem::create_directories(path.parent_path());
        write_file_atomic(path,
                          {reinterpret_cast<const char*>(kl.data()), kl.size() * sizeof(float)});
        return kl;
    }

    /// Adds a layout if ggml can represent every tensor in it.
    void encode_and_add(Layout layout, std::vector<Layout>& layouts) const {
        if (layout.file_bytes > bench_.target_bytes()) return;
        for (const Layout& known : layouts) {
            if (known.types == layout.types) return;
        }
        for (size_t t = 0; t < layout.types.size(); ++t) {
            cancellation_.check();
            if (!candidates_.usable(t, layout.types[t])) return;
        }
        layouts.push_back(std::move(layout));
    }

    void choose(Selection& selection) const {
        std::vector<search::MeasuredPlan> plans;
        size_t searched = 0;
        for (const Layout& layout : selection.layouts) {
            search::MeasuredPlan plan;
            plan.name = layout.name;
            plan.mean_kl = mean_kl(layout.token_kl, calibration_.chunk_len).mean;
            const std::vector<double> tokens(layout.token_kl.begin(), layout.token_kl.end());
            plan.kl = search::chunk_means(tokens, static_cast<size_t>(calibration_.chunk_len));
            plan.file_bytes = layout.file_bytes;
            if (plans.size() < n_searched_ &&
                plan.mean_kl < (plans.empty() ? INFINITY : plans[searched].mean_kl))
                searched = plans.size();
            plans.push_back(std::move(plan));
        }
        const search::Choice choice = search::choose_best(plans, searched, bench_.target_bytes());
        selection.best = choice.best;
        selection.log = choice.log;
        for (const std::string& line : choice.log)
            observer_.log(choice.searched_won ? LogLevel::info : LogLevel::warn, line);
    }

    Workbench& bench_;
    const Calibration& calibration_;
    Candidates& candidates_;
    const CandidateTypes& types_;
    const CandidateTypes& all_types_;
    const std::vector<SearchValues>& searches_;
    const RunDir& run_;
    size_t n_searched_ = 0;  // the first layouts, in order of preference
    Observer& observer_;
    const Cancellation& cancellation_;
};

}  // namespace

Selection select_layout(Workbench& bench, const Calibration& calibration, Candidates& candidates,
                        const CandidateTypes& types, const CandidateTypes& all_types,
                        const std::vector<SearchValues>& searches, Teacher& teacher, RunDir& run,
                        std::vector<StageResult>& results, Observer& observer,
                        const Cancellation& cancellation) {
    Selector selector(bench, calibration, candidates, types, all_types, searches, run, observer,
                      cancellation);
    StageTimer encoding("encode", 0, "tensors", observer);
    Selection selection;
    selection.layouts = selector.projections();
    encoding.finish(results);
    if (!bench.settings().compare) return selection;
    StageTimer timer("select", 0, "plans", observer);
    selector.compare(selection, teacher);
    timer.finish(results);
    return selection;
}

std::optional<model::PresetLayout> try_preset_layout(const Workbench& bench,
                                                     std::string_view preset) {
    try {
        return model::preset_layout(bench.settings().model, preset, true);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_file && error.kind() != ErrorKind::unsupported_model)
            throw;
        return std::nullopt;
    }
}

search::Plan make_plan(const Workbench& bench, const Calibration& calibration,
                       const Layout& layout) {
    search::Plan plan;
    std::vector<search::TensorInfo> infos;
    for (size_t t = 0; t < layout.types.size(); ++t) {
        const Tensor& tensor = bench.tensors()[t];
        plan.tensors.push_back({tensor.name, std::string(quant::type_info(layout.types[t]).name)});
        infos.push_back({tensor.name, {tensor.info->ne.begin(), tensor.info->ne.end()}});
    }
    plan.model_id = search::model_identity(infos);
    plan.target_bytes = bench.target_bytes();
    plan.file_bytes = layout.file_bytes;
    plan.imatrix_hash = sha256_hex(read_file(calibration.imatrix_path));
    plan.encoder = bench.encoder().description();
    plan.seed = bench.settings().seed;
    plan.method = layout.name;
    if (layout.predicted_kl > 0.0) plan.scores["predicted_kl"] = layout.predicted_kl;
    if (!layout.token_kl.empty())
        plan.scores["validation_kl"] = mean_kl(layout.token_kl, calibration.chunk_len).mean;
    return plan;
}

MeanKl mean_kl(const std::vector<float>& token_kl, int32_t chunk_len) {
    const std::vector<double> tokens(token_kl.begin(), token_kl.end());
    if (tokens.empty()) return {};
    const std::vector<double> means = search::chunk_means(tokens, static_cast<size_t>(chunk_len));
    MeanKl result;
    for (const double m : means) result.mean += m / static_cast<double>(means.size());
    double square = 0;
    for (const double m : means) square += (m - result.mean) * (m - result.mean);
    if (means.size() > 1)
        result.error = std::sqrt(square / static_cast<double>(means.size() - 1) /
                                 static_cast<double>(means.size()));
    return result;
}

}  // namespace voodoo::pipeline
