#include "search/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"

namespace voodoo::search {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "voodoo.plan";
// Bounds for hostile files: far above any real model, far below what would hurt.
constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxTypeBytes = 32;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 52;
constexpr size_t kMaxListed = 8;

char lower_ascii(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), lower_ascii);
    return out;
}

bool is_name(std::string_view name) {
    return !name.empty() && name.size() <= kMaxNameBytes &&
           std::all_of(name.begin(), name.end(), [](char c) {
               const auto u = static_cast<unsigned char>(c);
               return u >= 0x20 && u != 0x7f;
           });
}

bool is_type(std::string_view type) {
    return !type.empty() && type.size() <= kMaxTypeBytes &&
           std::all_of(type.begin(), type.end(), [](char c) {
               const char l = lower_ascii(c);
               return (l >= 'a' && l <= 'z') || (l >= '0' && l <= '9') || l == '_';
           });
}

/// What is wrong with a plan, or an empty string.
std::string find_fault(const Plan& plan) {
    if (plan.tensors.empty()) {
        return "the plan names no tensor";
    }
    if (plan.tensors.size() > kMaxTensors) {
        return fmt::format("the plan names {} tensors, more than {}", plan.tensors.size(),
                           kMaxTensors);
    }
    std::unordered_set<std::string_view> seen;
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
        const PlanEntry& entry = plan.tensors[i];
        if (!is_name(entry.tensor)) {
            return fmt::format("entry {} has an empty, overlong or unprintable tensor name", i);
        }
        if (!is_type(entry.type)) {
            return fmt::format("tensor {} has an ill-formed type name", entry.tensor);
        }
        if (!seen.insert(entry.tensor).second) {
            return fmt::format("tensor {} appears twice", entry.tensor);
        }
    }
    if (plan.target_bytes > kMaxFileBytes || plan.file_bytes > kMaxFileBytes) {
        return "a size is larger than 2^52 bytes";
    }
    for (const auto& [key, score] : plan.scores) {
        if (!std::isfinite(score)) {
            return fmt::format("score {} is not finite", key);
        }
    }
    return {};
}

[[noreturn]] void bad_file(const std::string& message, const std::string& where) {
    throw Error(ErrorKind::bad_file, message, where);
}

std::string read_string(const Json& object, const char* key, bool required,
                        const std::string& where) {
    const auto found = object.find(key);
    if (found == object.end()) {
        if (required) {
            bad_file(fmt::format("\"{}\" is missing", key), where);
        }
        return {};
    }
    if (!found->is_string()) {
        bad_file(fmt::format("\"{}\" is not a string", key), where);
    }
    return found->get<std::string>();
}

uint64_t read_unsigned(const Json& object, const char* key, const std::string& where) {
    const auto found = object.find(key);
    if (found == object.end()) {
        return 0;
    }
    if (!found->is_number_unsigned()) {
        bad_file(fmt::format("\"{}\" is not a non-negative integer", key), where);
    }
    return found->get<uint64_t>();
}

void read_header(const Json& root, const std::string& where) {
    if (!root.is_object() || read_string(root, "format", true, where) != kFormat) {
        bad_file(fmt::format("not a plan: \"format\" is not \"{}\"", kFormat), where);
    }
    const auto version = root.find("version");
    if (version == root.end() || !version->is_number_integer()) {
        bad_file("\"version\" is missing or no integer", where);
    }
    if (*version != kPlanVersion) {
        throw Error(
            ErrorKind::bad_file,
            fmt::format("plan version {} is not supported, only {}", version->dump(), kPlanVersion),
            where, "write the plan again with this version of voodoo");
    }
}

void read_entries(const Json& root, Plan& plan, const std::string& where) {
    const auto tensors = root.find("tensors");
    if (tensors == root.end() || !tensors->is_array()) {
        bad_file("\"tensors\" is missing or no array", where);
    }
    if (tensors->size() > kMaxTensors) {
        bad_file(fmt::format("\"tensors\" has more than {} entries", kMaxTensors), where);
    }
    plan.tensors.reserve(tensors->size());
    for (const Json& entry : *tensors) {
        if (!entry.is_object()) {
            bad_file("an entry of \"tensors\" is not an object", where);
        }
        plan.tensors.push_back(
            {read_string(entry, "name", true, where), read_string(entry, "type", true, where)});
    }
}

/// Appends "a, b, c and 12 more" of the names.
std::string list_names(const std::vector<std::string>& names) {
    std::string out;
    for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
        out += (i == 0 ? "" : ", ") + names[i];
    }
    if (names.size() > kMaxListed) {
        out += fmt::format(" and {} more", names.size() - kMaxListed);
    }
    return out;
}

}  // namespace

std::string Plan::plan_hash() const {
    std::vector<const PlanEntry*> sorted;
    sorted.reserve(tensors.size());
    for (const PlanEntry& entry : tensors) {
        sorted.push_back(&entry);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const PlanEntry* a, const PlanEntry* b) { return a->tensor < b->tensor; });
    // Names hold no control characters (validate_plan), so the separators can't be forged.
    Sha256 sha;
    for (const PlanEntry* entry : sorted) {
        sha.update(entry->tensor).update("\t").update(lower(entry->type)).update("\n");
    }
    return sha.hex();
}

const std::string* Plan::find_type(std::string_view tensor) const {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const PlanEntry& entry) { return entry.tensor == tensor; });
    return found == tensors.end() ? nullptr : &found->type;
}

std::string model_identity(std::span<const TensorInfo> tensors) {
    Sha256 sha;
    for (const TensorInfo& tensor : tensors) {
        // Length first: a name may be anything in a hostile file.
        sha.update(fmt::format("{}:", tensor.name.size())).update(tensor.name);
        for (const int64_t extent : tensor.shape) {
            sha.update(fmt::format(" {}", extent));
        }
        sha.update("\n");
    }
    return sha.hex();
}

void validate_plan(const Plan& plan) {
    if (const std::string fault = find_fault(plan); !fault.empty()) {
        throw Error(ErrorKind::usage, fault, "plan");
    }
}

std::string to_json(const Plan& plan) {
    validate_plan(plan);
    Json root;
    root["format"] = kFormat;
    root["version"] = kPlanVersion;
    root["plan_hash"] = plan.plan_hash();
    root["model_id"] = plan.model_id;
    root["target_bytes"] = plan.target_bytes;
    root["file_bytes"] = plan.file_bytes;
    root["imatrix_hash"] = plan.imatrix_hash;
    root["encoder"] = plan.encoder;
    root["seed"] = plan.seed;
    root["method"] = plan.method;
    root["scores"] = Json::object();
    for (const auto& [key, score] : plan.scores) {
        root["scores"][key] = score;
    }
    Json& tensors = root["tensors"] = Json::array();
    for (const PlanEntry& entry : plan.tensors) {
        tensors.push_back({{"name", entry.tensor}, {"type", entry.type}});
    }
    try {
        return root.dump(1) + "\n";
    } catch (const nlohmann::json::exception&) {  // a string that is not UTF-8
        throw Error(ErrorKind::usage, "a name or text of the plan is not valid UTF-8", "plan");
    }
}

Plan plan_from_json(std::string_view text, const std::string& where) {
    if (text.size() > kMaxTextBytes) {
        bad_file(fmt::format("{} bytes is too long for a plan", text.size()), where);
    }
    Json root;
    try {
        // The callback refuses deep nesting, which would overflow the stack when the value is
        // destroyed.
        root = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
            if (depth > 8) {
                bad_file("nested too deeply for a plan", where);
            }
            return true;
        });
    } catch (const nlohmann::json::exception& error) {
        bad_file(fmt::format("not valid JSON: {}", error.what()), where);
    }
    read_header(root, where);

    Plan plan;
    read_entries(root, plan, where);
    plan.model_id = read_string(root, "model_id", false, where);
    plan.target_bytes = read_unsigned(root, "target_bytes", where);
    plan.file_bytes = read_unsigned(root, "file_bytes", where);
    plan.imatrix_hash = read_string(root, "imatrix_hash", false, where);
    plan.encoder = read_string(root, "encoder", false, where);
    plan.seed = read_unsigned(root, "seed", where);
    plan.method = read_string(root, "method", false, where);
    if (const auto scores = root.find("scores"); scores != root.end()) {
        if (!scores->is_object()) {
            bad_file("\"scores\" is not an object", where);
        }
        for (const auto& [key, score] : scores->items()) {
            if (!score.is_number()) {
                bad_file(fmt::format("score \"{}\" is not a number", key), where);
            }
            plan.scores[key] = score.get<double>();
        }
    }
    if (const std::string fault = find_fault(plan); !fault.empty()) {
        bad_file(fault, where);
    }
    if (const std::string hash = read_string(root, "plan_hash", false, where);
        !hash.empty() && hash != plan.plan_hash()) {
        throw Error(ErrorKind::bad_file,
                    "the assignments do not have the plan_hash that the file states", where,
                    "remove \"plan_hash\" if the plan was edited on purpose");
    }
    return plan;
}

Plan read_plan(const std::string& path) {
    return plan_from_json(read_file(path), path);
}

void write_plan(const std::string& path, const Plan& plan) {
    write_file_atomic(path, to_json(plan));
}

void check_plan_fits(const Plan& plan, std::span<const TensorInfo> tensors) {
    validate_plan(plan);
    std::unordered_set<std::string_view> planned, present;
    for (const PlanEntry& entry : plan.tensors) {
        planned.insert(entry.tensor);
    }
    std::vector<std::string> missing, unknown;
    for (const TensorInfo& tensor : tensors) {
        present.insert(tensor.name);
        if (!planned.contains(tensor.name)) {
            missing.push_back(tensor.name);
        }
    }
    for (const PlanEntry& entry : plan.tensors) {
        if (!present.contains(entry.tensor)) {
            unknown.push_back(entry.tensor);
        }
    }
    std::string message;
    if (!unknown.empty()) {
        message += "tensors that the model does not have: " + list_names(unknown);
    }
    if (!missing.empty()) {
        message += (message.empty() ? "" : "; ") + ("no type for: " + list_names(missing));
    }
    if (message.empty() && !plan.model_id.empty() && plan.model_id != model_identity(tensors)) {
        message =
            "the plan was made for a model with other tensor shapes or another order of tensors";
    }
    if (!message.empty()) {
        throw Error(ErrorKind::usage, "the plan does not fit the model: " + message, "plan");
    }
}

std::string to_recipe(const Plan& plan) {
    validate_plan(plan);
    std::string out;
    for (const PlanEntry& entry : plan.tensors) {
        out += '^';
        for (const char c : entry.tensor) {
            const bool plain =
                (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
            if (plain) {
                out += c;
            } else if (c == '.') {
                out += "\\.";
            } else {
                out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
            }
        }
        out += "$=" + lower(entry.type) + '\n';
    }
    return out;
}

}  // namespace voodoo::search
