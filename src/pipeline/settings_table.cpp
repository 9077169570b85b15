#include "pipeline/settings_table.h"

#include <array>

namespace voodoo::pipeline {
namespace {

constexpr CommandSet kQuantize = bit(Command::quantize);
constexpr CommandSet kData = bit(Command::data);
constexpr CommandSet kTrain = bit(Command::train);
constexpr CommandSet kExport = bit(Command::export_plan);
constexpr CommandSet kEval = bit(Command::eval);
constexpr CommandSet kInspect = bit(Command::inspect);
constexpr CommandSet kDoctor = bit(Command::doctor);
constexpr CommandSet kLearn = kQuantize | kTrain;

using Table = std::vector<Field<Settings>>;

template <class Access>
void add(Table& table, FieldInfo info, Access access) {
    table.push_back(make_field<Settings>(std::move(info), access));
}

void add_files(Table& t) {
    add(
        t,
        {.name = "model",
         .key = "files.model",
         .commands = kLearn | kData | kExport | kInspect | kDoctor,
         .positional = true,
         .kind = ValueKind::path,
         .help = "source model: GGUF in BF16, F16, F32 or Q8_0; of a split one, the first file",
         .example = "\"model.gguf\""},
        [](auto& s) -> auto& { return s.model; });
    add(
        t,
        {.name = "output",
         .aliases = {"o"},
         .key = "files.output",
         .commands = kLearn | kExport,
         .kind = ValueKind::path,
         .help = "GGUF to write; appears under this name only when it is complete",
         .example = "\"out.gguf\""},
        [](auto& s) -> auto& { return s.output; });
    add(
        t,
        {.name = "run",
         .aliases = {"run-dir", "output-dir"},
         .key = "files.run_dir",
         .commands = kLearn | kData | kExport,
         .kind = ValueKind::path,
         .value = "DIR",
         .help = "run directory: every stage leaves its result there, and a killed run continues "
                 "from it",
         .example = "\"out.gguf.run\"",
         .default_note = "<output>.run, or <model>.run"},
        [](auto& s) -> auto& { return s.run_dir; });
}

void add_target(Table& t) {
    add(
        t,
        {.name = "size",
         .key = "target.size",
         .commands = kLearn | kInspect,
         .kind = ValueKind::size,
         .unit = "bytes, or with B, kB, MB, GB, KiB, MiB, GiB",
         .help = "largest size of the whole file; this, --bpw, --preset or --like",
         .example = "\"4.2GiB\""},
        [](auto& s) -> auto& { return s.size_bytes; });
    add(
        t,
        {.name = "bpw",
         .key = "target.bpw",
         .commands = kLearn | kInspect,
         .kind = ValueKind::number,
         .unit = "bits per weight",
         .help = "largest size of the whole file, as bits per weight of the model",
         .example = "3.1"},
        [](auto& s) -> auto& { return s.bpw; });
    add(
        t,
        {.name = "preset",
         .key = "target.preset",
         .commands = kLearn | kInspect,
         .kind = ValueKind::text,
         .help = "the size of the file that llama-quantize makes with this preset and an "
                 "importance matrix, computed without making it",
         .example = "\"Q4_K_M\""},
        [](auto& s) -> auto& { return s.preset; });
    add(
        t,
        {.name = "like",
         .key = "target.like",
         .commands = kLearn | kInspect,
         .kind = ValueKind::path,
         .help = "the size of this GGUF, all its shards",
         .example = "\"other.gguf\""},
        [](auto& s) -> auto& { return s.like; });
}

void add_data(Table& t) {
    constexpr CommandSet commands = kLearn | kData;
    add(
        t,
        {.name = "text",
         .key = "data.text",
         .commands = commands,
         .kind = ValueKind::path_list,
         .value = "FILE...",
         .help = "calibration text in UTF-8, several files in their order",
         .example = "[\"train.txt\"]",
         .default_note = "the model writes its own text"},
        [](auto& s) -> auto& { return s.text; });
    add(
        t,
        {.name = "imatrix",
         .key = "data.imatrix",
         .commands = commands | kInspect,
         .kind = ValueKind::path,
         .help = "importance matrix to use, in llama.cpp's GGUF or .dat format",
         .example = "\"imatrix.gguf\"",
         .default_note = "computed from the calibration tokens"},
        [](auto& s) -> auto& { return s.imatrix; });
    add(
        t,
        {.name = "tokens",
         .key = "data.tokens",
         .commands = commands,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "calibration tokens, each used once; rounded down to whole chunks"},
        [](auto& s) -> auto& { return s.n_tokens; });
    add(
        t,
        {.name = "valid-tokens",
         .key = "data.valid_tokens",
         .commands = commands,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "tokens set apart for the closing comparison, never trained on"},
        [](auto& s) -> auto& { return s.n_valid_tokens; });
    add(
        t,
        {.name = "chunk-len",
         .key = "data.chunk_len",
         .commands = commands,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "length of a sequence"},
        [](auto& s) -> auto& { return s.chunk_len; });
}

void add_candidates(Table& t) {
    constexpr CommandSet commands = kLearn | kInspect;
    add(
        t,
        {.name = "types",
         .key = "candidates.types",
         .commands = commands,
         .kind = ValueKind::text_list,
         .value = "TYPE,TYPE,...",
         .help = "choose among these types only",
         .example = "[\"Q3_K\", \"Q4_K\", \"Q6_K\"]",
         .default_note = "all that pay"},
        [](auto& s) -> auto& { return s.types; });
    add(
        t,
        {.name = "tensor",
         .key = "candidates.tensor",
         .commands = commands,
         .kind = ValueKind::pair_list,
         .value = "NAME=TYPE",
         .help = "give this tensor this type; may be repeated",
         .example = "[\"output.weight=Q6_K\"]"},
        [](auto& s) -> auto& { return s.tensor_types; });
    add(
        t,
        {.name = "keep",
         .key = "candidates.keep",
         .commands = commands,
         .kind = ValueKind::text_list,
         .help = "leave this tensor as it is in the source; may be repeated",
         .example = "[\"token_embd.weight\"]"},
        [](auto& s) -> auto& { return s.keep; });
    add(
        t,
        {.name = "max-encode-ns",
         .key = "candidates.max_encode_ns",
         .commands = commands,
         .kind = ValueKind::number,
         .unit = "ns per weight",
         .help = "leave out types whose encoder is slower than this on one core, unless --types "
                 "names them"},
        [](auto& s) -> auto& { return s.max_encode_ns; });
    add(
        t,
        {.name = "ggml-lib",
         .key = "candidates.ggml_lib",
         .commands = kLearn | kExport | kInspect | kDoctor,
         .kind = ValueKind::path,
         .help = "libggml-base whose encoders produce the bytes; the environment variable "
                 "VOODOO_GGML_LIB "
                 "sets it too",
         .example = "\"libggml-base.so\"",
         .default_note = "the one that is linked"},
        [](auto& s) -> auto& { return s.ggml_lib; });
}

template <class Access>
void add_gate_number(Table& t, std::string_view name, std::string_view key, std::string_view unit,
                     std::string_view help, Access access) {
    add(t,
        {.name = name,
         .key = key,
         .commands = kLearn,
         .kind = ValueKind::number,
         .unit = unit,
         .help = help},
        access);
}

void add_layout(Table& t) {
    add(
        t,
        {.name = "layout",
         .key = "layout.method",
         .commands = kLearn,
         .kind = ValueKind::choice,
         .value = "second-order|gates|gates-plain",
         .help = "how types are chosen: by second-order costs; by gates that start from them; by "
                 "gates alone, the original method"},
        [](auto& s) -> auto& { return s.layout; });
    add(
        t,
        {.name = "score-chunks",
         .key = "layout.score_chunks",
         .commands = kLearn,
         .kind = ValueKind::integer,
         .unit = "chunks",
         .help = "most chunks of the calibration text that the second-order costs are measured "
                 "on"},
        [](auto& s) -> auto& { return s.score_chunks; });
    add(
        t,
        {.name = "score-tolerance",
         .key = "layout.score_tolerance",
         .commands = kLearn,
         .kind = ValueKind::number,
         .unit = "share of the predicted loss",
         .help = "stop measuring costs once the plans of two halves of the chunks differ by less"},
        [](auto& s) -> auto& { return s.score_tolerance; });
}

void add_encoding(Table& t) {
    add(
        t,
        {.name = "feedback",
         .key = "encoding.feedback",
         .commands = kLearn,
         .kind = ValueKind::on_off,
         .help = "let each block of columns correct the errors of the others; off: the bytes are "
                 "those of llama-quantize on the source"},
        [](auto& s) -> auto& { return s.feedback; });
    add(
        t,
        {.name = "feedback-tokens",
         .key = "encoding.feedback_tokens",
         .commands = kLearn,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "calibration tokens whose activations the error feedback is fitted to"},
        [](auto& s) -> auto& { return s.feedback_tokens; });
    add(
        t,
        {.name = "write-adjusted",
         .key = "encoding.write_adjusted",
         .commands = kLearn,
         .kind = ValueKind::path,
         .help = "also write the source as error feedback has adjusted it (F32, large): "
                 "llama-quantize with the run's recipe makes the same bytes of it",
         .example = "\"adjusted.gguf\"",
         .default_note = "not written"},
        [](auto& s) -> auto& { return s.write_adjusted; });
}

void add_gates(Table& t) {
    add_gate_number(
        t, "lambda", "gates.lambda", "", "weight of KL(teacher || student) in the loss",
        [](auto& s) -> auto& { return s.gates.lambda_kl; });
    add_gate_number(
        t, "ce-weight", "gates.ce_weight", "", "weight of the cross-entropy in the loss",
        [](auto& s) -> auto& { return s.gates.ce_weight; });
    add(
        t,
        {.name = "tokens-per-step",
         .key = "gates.tokens_per_step",
         .commands = kLearn,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "tokens of one optimizer step"},
        [](auto& s) -> auto& { return s.tokens_per_step; });
    add_gate_number(
        t, "tau-start", "gates.tau_start", "gate units", "softmax temperature of the first step",
        [](auto& s) -> auto& { return s.gates.tau_start; });
    add_gate_number(
        t, "tau-end", "gates.tau_end", "gate units", "softmax temperature of the last step",
        [](auto& s) -> auto& { return s.gates.tau_end; });
    add(
        t,
        {.name = "tau-schedule",
         .key = "gates.tau_schedule",
         .commands = kLearn,
         .kind = ValueKind::choice,
         .value = "constant|linear|exponential",
         .help = "how the temperature goes from its first value to its last"},
        [](auto& s) -> auto& { return s.gates.tau_schedule; });
    add_gate_number(
        t, "lr", "gates.lr", "gate units", "learning rate: Adam's step",
        [](auto& s) -> auto& { return s.gates.lr; });
    add_gate_number(
        t, "lr-end-ratio", "gates.lr_end_ratio", "share of lr",
        "learning rate at the end of the cosine",
        [](auto& s) -> auto& { return s.gates.lr_end_ratio; });
    add_gate_number(
        t, "warmup", "gates.warmup", "share of the steps",
        "part of the run in which the learning rate rises linearly from 0",
        [](auto& s) -> auto& { return s.gates.warmup_share; });
    add_gate_number(
        t, "beta1", "gates.beta1", "per step", "Adam: decay of the gradient's mean",
        [](auto& s) -> auto& { return s.gates.beta1; });
    add_gate_number(
        t, "beta2", "gates.beta2", "per step", "Adam: decay of the gradient's second moment",
        [](auto& s) -> auto& { return s.gates.beta2; });
    add_gate_number(
        t, "epsilon", "gates.epsilon", "nats per gate unit",
        "Adam: added to the root of the second moment",
        [](auto& s) -> auto& { return s.gates.epsilon; });
    add_gate_number(
        t, "penalty", "gates.penalty", "nats",
        "price of the squared relative size error beyond the dead zone",
        [](auto& s) -> auto& { return s.gates.penalty_weight; });
    add_gate_number(
        t, "dead-zone", "gates.dead_zone", "share of the size",
        "relative error of the expected size that costs nothing",
        [](auto& s) -> auto& { return s.gates.dead_zone; });
    add_gate_number(
        t, "score-decay", "gates.score_decay", "per step",
        "decay of the accumulated first-order scores",
        [](auto& s) -> auto& { return s.gates.score_decay; });
    add_gate_number(
        t, "logit-range", "gates.logit_range", "tau-end",
        "a gate stays within this range of its tensor's largest, so that every type keeps "
        "receiving gradient",
        [](auto& s) -> auto& { return s.gates.logit_range; });
}

void add_tuning(Table& t) {
    add(
        t,
        {.name = "tune",
         .key = "tuning.method",
         .commands = kLearn,
         .kind = ValueKind::choice,
         .value = "none|scales",
         .help = "what is tuned once the tensors are encoded: nothing, or the norms and biases, "
                 "which the file keeps in F32; kept only if validation KL falls"},
        [](auto& s) -> auto& { return s.tune; });
    add(
        t,
        {.name = "tune-steps",
         .key = "tuning.steps",
         .commands = kLearn,
         .kind = ValueKind::integer,
         .unit = "steps",
         .help = "most steps of the tuning; no calibration text is used twice"},
        [](auto& s) -> auto& { return s.tuning.n_steps; });
    add(
        t,
        {.name = "tune-tokens-per-step",
         .key = "tuning.tokens_per_step",
         .commands = kLearn,
         .kind = ValueKind::integer,
         .unit = "tokens",
         .help = "tokens of one step of the tuning; at least one chunk"},
        [](auto& s) -> auto& { return s.tune_tokens_per_step; });
    add(
        t,
        {.name = "tune-lr",
         .key = "tuning.lr",
         .commands = kLearn,
         .kind = ValueKind::number,
         .unit = "relative change",
         .help = "learning rate of the tuning: Adam's step"},
        [](auto& s) -> auto& { return s.tuning.lr; });
}

void add_outcome_and_machine(Table& t) {
    add(
        t,
        {.name = "compare",
         .key = "outcome.compare",
         .commands = kLearn,
         .kind = ValueKind::on_off,
         .help = "measure the result against the llama.cpp preset below the size and the best mix "
                 "of two types, "
                 "and export what is best"},
        [](auto& s) -> auto& { return s.compare; });
    add(
        t,
        {.name = "split-max-size",
         .key = "outcome.split_max_size",
         .commands = kLearn | kExport,
         .kind = ValueKind::size,
         .unit = "bytes, or with a unit",
         .help = "write several files of at most this size",
         .default_note = "one file"},
        [](auto& s) -> auto& { return s.split_max_bytes; });
    add(
        t,
        {.name = "seed",
         .key = "machine.seed",
         .commands = kLearn | kData,
         .kind = ValueKind::integer,
         .help = "seed of all random draws; the same seed and threads give the same plan"},
        [](auto& s) -> auto& { return s.seed; });
    add(
        t,
        {.name = "threads",
         .key = "machine.threads",
         .commands = kLearn | kData | kExport | kEval | kInspect | kDoctor,
         .kind = ValueKind::integer,
         .unit = "threads",
         .help = "threads to compute with",
         .default_note = "all that the process may use"},
        [](auto& s) -> auto& { return s.n_threads; });
    add(
        t,
        {.name = "memory",
         .key = "machine.memory",
         .commands = kLearn | kData | kDoctor,
         .kind = ValueKind::size,
         .unit = "bytes, or with a unit",
         .help = "bound on the working memory; less makes the run slower, not worse",
         .default_note = "60 % of what is available"},
        [](auto& s) -> auto& { return s.memory_bytes; });
}

Table make_table() {
    Table table;
    add_files(table);
    add_target(table);
    add_data(table);
    add_candidates(table);
    add_layout(table);
    add_encoding(table);
    add_gates(table);
    add_tuning(table);
    add_outcome_and_machine(table);
    return table;
}

constexpr std::array<SettingsSection, 10> kSections = {{
    {"files", "Files"},
    {"target", "Target: one of the two"},
    {"data", "Calibration data"},
    {"candidates", "Candidates"},
    {"layout", "Layout"},
    {"encoding", "Encoding"},
    {"gates", "Gates"},
    {"tuning", "Tuning"},
    {"outcome", "Outcome"},
    {"machine", "Machine"},
}};

}  // namespace

std::span<const Field<Settings>> settings_table() {
    static const Table table = make_table();
    return table;
}

std::span<const SettingsSection> settings_sections() {
    return kSections;
}

std::string_view section_of(std::string_view key) {
    return key.substr(0, key.find('.'));
}

}  // namespace voodoo::pipeline
