// The commands of the product: each runs the stages that it needs and leaves their results in the
// run directory.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "device/memory.h"
#include "pipeline/export.h"
#include "pipeline/finish.h"
#include "pipeline/score.h"
#include "pipeline/settings_toml.h"
#include "pipeline/stages.h"
#include "search/hull.h"

namespace voodoo::pipeline {
namespace {

/// Everything that a run's stages share.
struct Session {
    Session(const Settings& settings, Observer& o, const Cancellation& c)
        : observer(o),
          cancellation(c),
          bench((validate(settings), settings), o),
          run(run_dir(bench)) {
        write_file_atomic(run.file("settings.toml"), settings_to_toml(settings));
    }

    /// Checks the paths of what is written first: the run directory beside the output would create
    /// a folder that is not there.
    static std::filesystem::path run_dir(const Workbench& bench) {
        const Settings& settings = bench.settings();
        if (!settings.output.empty()) check_output_path(bench);
        check_adjusted_path(bench);
        if (!settings.run_dir.empty()) return settings.run_dir;
        std::filesystem::path path = settings.output.empty() ? settings.model : settings.output;
        path += ".run";
        return path;
    }

    /// Refuses an impossible size before any work.
    void check_budget() const {
        const SizeRange range = attainable_range(bench);
        const uint64_t target = bench.target_bytes();
        if (target >= range.min) return;
        throw Error(
            ErrorKind::infeasible_budget,
            fmt::format(
                "{} is smaller than this model can be made: {} to {} bytes ({} to {}) are possible",
                format_size(target), range.min, range.max, format_size(range.min),
                format_size(range.max)),
            "", "ask for more, or allow more types with --types");
    }

    Candidates candidates(const Calibration& calibration) {
        return {bench, calibration, run.file("candidates"), observer, cancellation};
    }

    Observer& observer;
    const Cancellation& cancellation;
    Workbench bench;
    RunDir run;
    std::vector<StageResult> results;
};

struct Trained {
    search::Plan plan;
    Selection selection;
    Finished finished;
};

/// The plan for llama-quantize. Kept tensors are not in the plan, but llama-quantize would give
/// them its base type.
std::string recipe(const Workbench& bench, search::Plan plan) {
    for (const std::string& name : bench.settings().keep) {
        const bool known = std::any_of(plan.tensors.begin(), plan.tensors.end(),
                                       [&](const auto& entry) { return entry.tensor == name; });
        if (known) continue;
        plan.tensors.push_back({name, ggml_type_name(bench.file().find_tensor(name)->type)});
    }
    return search::to_recipe(plan);
}

std::vector<std::vector<double>> sample_errors(const CandidateTypes& types) {
    std::vector<std::vector<double>> errors;
    for (const auto& tensor : types) {
        errors.emplace_back();
        for (const Candidate& c : tensor) errors.back().push_back(c.sample_error);
    }
    return errors;
}

/// The original method. Two readings of the learned scores: the gates themselves, and the
/// first-order change of the loss that they were trained on. The gates hold the size penalty too,
/// so they may prefer a smaller type where the budget has room for a better one: what they leave
/// goes to types with a smaller error.
std::vector<SearchValues> plain_gates(Session& session, const Calibration& calibration,
                                      Candidates& candidates, CandidateTypes& types,
                                      Teacher& teacher) {
    candidates.encode_all(types, session.results);
    const search::Gates gates =
        train_gates(session.bench, calibration, candidates, types, {}, teacher, session.run,
                    session.results, session.observer, session.cancellation);
    const auto errors = sample_errors(types);
    return {{"gates", gates.scores(search::GateScore::gates), errors},
            {"gates (first order)", gates.scores(search::GateScore::first_order), errors}};
}

/// Keeps the types of each tensor that are best at some price per byte: on the lower convex hull
/// of (bytes, cost).
void keep_hull(CandidateTypes& types, Scores& scores) {
    for (size_t t = 0; t < types.size(); ++t) {
        std::vector<double> bytes;
        for (const Candidate& c : types[t]) bytes.push_back(static_cast<double>(c.bytes));
        const std::vector<size_t> hull = search::lower_hull(bytes, scores.cost[t]);
        std::vector<Candidate> kept;
        std::vector<double> cost, error;
        for (const size_t k : hull) {
            kept.push_back(types[t][k]);
            cost.push_back(scores.cost[t][k]);
            error.push_back(scores.error[t][k]);
        }
        types[t] = std::move(kept);
        scores.cost[t] = std::move(cost);
        scores.error[t] = std::move(error);
    }
}

/// The gates again, started from second-order costs and with the rounding to one type in their
/// loss. Where they don't beat the costs' own plan, that is taken.
std::vector<SearchValues> started_gates(Session& session, const Calibration& calibration,
                                        Candidates& candidates, CandidateTypes& types,
                                        Scores scores, Teacher& teacher) {
    keep_hull(types, scores);
    candidates.encode_all(types, session.results);
    const search::Gates gates =
        train_gates(session.bench, calibration, candidates, types, scores.cost, teacher,
                    session.run, session.results, session.observer, session.cancellation);
    return {{"gates", gates.scores(search::GateScore::gates), scores.cost},
            {"second order", scores.cost, scores.cost, true}};
}

std::vector<SearchValues> run_search(Session& session, const Calibration& calibration,
                                     Candidates& candidates, CandidateTypes& types,
                                     Teacher& teacher) {
    const LayoutMethod method = session.bench.settings().layout;
    if (method == LayoutMethod::gates_plain)
        return plain_gates(session, calibration, candidates, types, teacher);
    candidates.drop_samples(types);
    const Scores scores = measure_scores(session.bench, calibration, candidates, types, session.run,
                                         session.results, session.observer, session.cancellation);
    candidates.drop_samples(CandidateTypes(types.size()));
    if (method == LayoutMethod::gates)
        return started_gates(session, calibration, candidates, types, scores, teacher);
    return {{"second order", scores.cost, scores.cost, true}};
}

Trained train(Session& session, const Calibration& calibration, Candidates& candidates) {
    const uint64_t budget = session.bench.target_bytes();
    const CandidateTypes all = candidates.measure_types(budget, session.run, session.results);
    const bool is_plain = session.bench.settings().layout == LayoutMethod::gates_plain;
    CandidateTypes types = candidates.prune(all, is_plain ? Pruning::near_hull : Pruning::beaten);
    Teacher teacher(session.bench, calibration);
    const std::vector<SearchValues> searches =
        run_search(session, calibration, candidates, types, teacher);
    Trained trained;
    trained.selection =
        select_layout(session.bench, calibration, candidates, types, all, searches, teacher,
                      session.run, session.results, session.observer, session.cancellation);
    const Layout& layout = trained.selection.layouts[trained.selection.best];
    trained.plan = make_plan(session.bench, calibration, layout);
    trained.finished = finish_layout(session.bench, calibration, candidates, layout,
                                     trained.plan.plan_hash(), teacher, session.run,
                                     session.results, session.observer, session.cancellation);
    search::write_plan(session.run.file("plan.json").string(), trained.plan);
    write_file_atomic(session.run.file("recipe.txt"), recipe(session.bench, trained.plan));
    return trained;
}

QuantizeResult export_result(Session& session, const FinalWeights& weights,
                             const search::Plan& plan) {
    QuantizeResult result;
    result.files = write_model(session.bench, weights, plan, session.observer, session.cancellation,
                               session.results);
    for (const auto& path : result.files) result.file_bytes += std::filesystem::file_size(path);
    result.target_bytes = plan.target_bytes;
    result.bits_per_weight = 8.0 * static_cast<double>(result.file_bytes) /
                             static_cast<double>(session.bench.n_weights());
    result.chosen = plan.method;
    result.stages = session.results;
    result.peak_memory_bytes = device::process_memory().peak_resident;
    return result;
}

}  // namespace

QuantizeResult run_quantize(const Settings& settings, Observer& observer,
                            const Cancellation& cancellation) {
    Session session(settings, observer, cancellation);
    check_output_path(session.bench);
    session.check_budget();
    // Named before hours of work, not after.
    session.bench.capture(1, 16, true);
    const Calibration calibration =
        prepare_calibration(session.bench, session.run, session.results, observer, cancellation);
    Candidates candidates = session.candidates(calibration);
    const Trained trained = train(session, calibration, candidates);
    QuantizeResult result = export_result(session, trained.finished.weights, trained.plan);
    for (const Layout& layout : trained.selection.layouts) {
        if (layout.token_kl.empty()) continue;
        const MeanKl kl = mean_kl(layout.token_kl, calibration.chunk_len);
        result.measured.push_back({layout.name, layout.file_bytes, kl.mean, kl.error});
    }
    result.steps = trained.finished.gains;
    write_file_atomic(session.run.file("run.json"), to_json(result).dump(1) + "\n");
    return result;
}

std::vector<StageResult> run_data(const Settings& settings, Observer& observer,
                                  const Cancellation& cancellation) {
    Session session(settings, observer, cancellation);
    prepare_calibration(session.bench, session.run, session.results, observer, cancellation);
    return session.results;
}

std::vector<StageResult> run_train(const Settings& settings, Observer& observer,
                                   const Cancellation& cancellation) {
    Session session(settings, observer, cancellation);
    session.check_budget();
    session.bench.capture(1, 16, true);
    const Calibration calibration =
        prepare_calibration(session.bench, session.run, session.results, observer, cancellation);
    Candidates candidates = session.candidates(calibration);
    train(session, calibration, candidates);
    return session.results;
}

QuantizeResult run_export(const Settings& settings, const std::filesystem::path& plan,
                          Observer& observer, const Cancellation& cancellation) {
    Session session(settings, observer, cancellation);
    check_output_path(session.bench);
    const std::filesystem::path path = plan.empty() ? session.run.file("plan.json") : plan;
    if (plan.empty() && !std::filesystem::exists(path)) {
        throw Error(ErrorKind::usage, "the run has no plan yet", path.string(),
                    "run `voodoo train` first, or give --plan");
    }
    const search::Plan chosen = search::read_plan(path.string());
    const Calibration calibration =
        prepare_calibration(session.bench, session.run, session.results, observer, cancellation);
    Candidates candidates = session.candidates(calibration);
    const FinalWeights weights =
        restore_final(session.bench, candidates, plan_types(session.bench, chosen),
                      chosen.plan_hash(), session.run);
    return export_result(session, weights, chosen);
}

nlohmann::json to_json(const QuantizeResult& result) {
    nlohmann::json json;
    for (const StageResult& stage : result.stages) {
        json["stages"].push_back(
            {{"stage", stage.stage}, {"seconds", stage.seconds}, {"from_cache", stage.from_cache}});
    }
    json["file_bytes"] = result.file_bytes;
    json["target_bytes"] = result.target_bytes;
    json["bits_per_weight"] = result.bits_per_weight;
    json["chosen"] = result.chosen;
    json["peak_memory_bytes"] = result.peak_memory_bytes;
    json["measured"] = nlohmann::json::array();
    for (const auto& m : result.measured) {
        json["measured"].push_back({{"name", m.name},
                                    {"file_bytes", m.file_bytes},
                                    {"mean_kl_nats", m.mean_kl},
                                    {"standard_error", m.standard_error}});
    }
    json["steps"] = nlohmann::json::array();
    for (const auto& s : result.steps) {
        json["steps"].push_back({{"step", s.step},
                                 {"mean_kl_nats", s.mean_kl},
                                 {"standard_error", s.standard_error},
                                 {"difference", s.difference},
                                 {"difference_error", s.difference_error},
                                 {"kept", s.kept}});
    }
    for (const auto& file : result.files) json["files"].push_back(file.string());
    return json;
}

}  // namespace voodoo::pipeline
