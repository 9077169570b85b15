// Gates to and from JSON. Doubles are written in the shortest form that reads back to the same
// bits.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "search/gates.h"

namespace voodoo::search {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<double>>;

constexpr const char* kFormat = "voodoo.gates";
constexpr int kVersion = 2;

[[noreturn]] void bad_file(const std::string& message) {
    throw Error(ErrorKind::bad_file, message, "gates state");
}

/// Every option with its name, once for both directions.
template <typename Options, typename Visit>
void visit_options(Options& o, Visit&& visit) {
    visit("lambda_kl", o.lambda_kl);
    visit("ce_weight", o.ce_weight);
    visit("tau_start", o.tau_start);
    visit("tau_end", o.tau_end);
    visit("lr", o.lr);
    visit("lr_end_ratio", o.lr_end_ratio);
    visit("warmup_share", o.warmup_share);
    visit("beta1", o.beta1);
    visit("beta2", o.beta2);
    visit("epsilon", o.epsilon);
    visit("penalty_weight", o.penalty_weight);
    visit("dead_zone", o.dead_zone);
    visit("score_decay", o.score_decay);
    visit("logit_range", o.logit_range);
}

constexpr std::pair<Schedule, const char*> kSchedules[] = {{Schedule::constant, "constant"},
                                                           {Schedule::linear, "linear"},
                                                           {Schedule::exponential, "exponential"}};

Json options_to_json(const GateOptions& options) {
    Json out;
    visit_options(options, [&](const char* name, double value) { out[name] = value; });
    out["n_steps"] = options.n_steps;
    for (const auto& [schedule, name] : kSchedules) {
        if (schedule == options.tau_schedule) {
            out["tau_schedule"] = name;
        }
    }
    return out;
}

GateOptions options_from_json(const Json& json) {
    GateOptions options;
    visit_options(options,
                  [&](const char* name, double& value) { value = json.at(name).get<double>(); });
    options.n_steps = json.at("n_steps").get<int64_t>();
    const auto wanted = json.at("tau_schedule").get<std::string>();
    bool known = false;
    for (const auto& [schedule, name] : kSchedules) {
        if (wanted == name) {
            options.tau_schedule = schedule;
            known = true;
        }
    }
    if (!known) {
        bad_file(fmt::format("unknown tau_schedule \"{}\"", wanted));
    }
    return options;
}

// JSON has no NaN or infinity; records of steps that were not applied may hold them. They read back
// as NaN.
double number_or_nan(const Json& json) {
    return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

Json record_to_json(const GateRecord& r) {
    return Json::array({r.step, r.loss.ce, r.loss.kl, r.penalty, r.total, r.expected_bytes,
                        r.entropy, r.tau, r.lr, r.grad_norm, r.rounding, r.applied});
}

GateRecord record_from_json(const Json& json) {
    if (json.size() != 12) {
        bad_file("a history record does not have 12 fields");
    }
    GateRecord r;
    r.step = json.at(0).get<int64_t>();
    double* const fields[] = {&r.loss.ce, &r.loss.kl, &r.penalty, &r.total,     &r.expected_bytes,
                              &r.entropy, &r.tau,     &r.lr,      &r.grad_norm, &r.rounding};
    for (size_t i = 0; i < std::size(fields); ++i) {
        *fields[i] = number_or_nan(json.at(i + 1));
    }
    r.applied = json.at(11).get<bool>();
    return r;
}

Rows rows_from_json(const Json& json, const std::vector<GateTensor>& tensors) {
    auto rows = json.get<Rows>();
    if (rows.size() != tensors.size()) {
        bad_file("a table does not have one row per tensor");
    }
    for (size_t t = 0; t < rows.size(); ++t) {
        if (rows[t].size() != tensors[t].types.size()) {
            bad_file(fmt::format("the row of tensor {} does not have one value per type",
                                 tensors[t].name));
        }
    }
    return rows;
}

}  // namespace

std::string Gates::serialize() const {
    Json root;
    root["format"] = kFormat;
    root["version"] = kVersion;
    root["options"] = options_to_json(options_);
    root["fixed_bytes"] = fixed_bytes_;
    root["target_bytes"] = target_bytes_;
    root["step"] = step_;
    root["n_applied"] = n_applied_;
    root["score_weight"] = score_weight_;
    root["tensors"] = Json::array();
    for (const GateTensor& tensor : tensors_) {
        root["tensors"].push_back({{"name", tensor.name},
                                   {"types", tensor.types},
                                   {"bytes", tensor.bytes},
                                   {"cost", tensor.cost}});
    }
    root["gates"] = gates_;
    root["mean"] = mean_;
    root["second"] = second_;
    root["score"] = score_;
    root["score_weighted"] = score_weighted_;
    root["history"] = Json::array();
    for (const GateRecord& record : history_) {
        root["history"].push_back(record_to_json(record));
    }
    return root.dump() + "\n";
}

Gates Gates::deserialize(std::string_view text) {
    try {
        // Deep nesting would overflow the stack when the value is destroyed.
        const Json root = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
            if (depth > 8) {
                bad_file("nested too deeply");
            }
            return true;
        });
        if (root.at("format") != kFormat || root.at("version") != kVersion) {
            bad_file("not a state of gates of this version");
        }
        std::vector<GateTensor> tensors;
        for (const Json& entry : root.at("tensors")) {
            tensors.push_back({entry.at("name").get<std::string>(),
                               entry.at("types").get<std::vector<std::string>>(),
                               entry.at("bytes").get<std::vector<double>>(),
                               entry.at("cost").get<std::vector<double>>()});
        }
        Gates out(std::move(tensors), root.at("fixed_bytes").get<double>(),
                  root.at("target_bytes").get<double>(), options_from_json(root.at("options")));
        out.gates_ = rows_from_json(root.at("gates"), out.tensors_);
        out.mean_ = rows_from_json(root.at("mean"), out.tensors_);
        out.second_ = rows_from_json(root.at("second"), out.tensors_);
        out.score_ = rows_from_json(root.at("score"), out.tensors_);
        out.score_weighted_ = rows_from_json(root.at("score_weighted"), out.tensors_);
        out.step_ = root.at("step").get<int64_t>();
        out.n_applied_ = root.at("n_applied").get<int64_t>();
        out.score_weight_ = root.at("score_weight").get<double>();
        for (const Json& record : root.at("history")) {
            out.history_.push_back(record_from_json(record));
        }
        for (std::vector<double>& row : out.gates_) {
            out.clamp_gates(row);  // changes nothing that serialize() wrote
        }
        const bool counts_fit = out.n_applied_ >= 0 && out.n_applied_ <= out.step_ &&
                                out.history_.size() == static_cast<size_t>(out.step_);
        if (!counts_fit) {
            bad_file("its step counts contradict each other");
        }
        for (const std::vector<double>& row : out.second_) {
            if (std::any_of(row.begin(), row.end(), [](double x) { return x < 0.0; })) {
                bad_file("a second moment is negative");
            }
        }
        return out;
    } catch (const nlohmann::json::exception& error) {
        bad_file(error.what());
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::bad_file) {
            throw;
        }
        bad_file(error.message());  // what the constructor refuses is the file's fault here
    }
}

}  // namespace voodoo::search
