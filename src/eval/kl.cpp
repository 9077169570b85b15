// Runs teacher and students over the same batches. A batch is as many chunks as llama-perplexity
// decodes together, so that llama.cpp splits it into the same micro-batches and rounds alike.
#include "eval/kl.h"

#include "base/threads.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

namespace voodoo::eval {

namespace {

using model::Batch;
using model::Context;
using model::ContextOptions;
using model::Model;
using model::Token;
using model::TokenChunks;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// How chunks are laid into batches; llama-perplexity's arithmetic.
struct Plan {
    int32_t n_ctx = 0;
    int32_t n_batch = 0;
    /// Chunks decoded together.
    int32_t n_seq = 0;
    /// First scored position, and scored positions per chunk: the last position has no next token.
    int32_t first = 0;
    int32_t n_scored = 0;

    Plan(int32_t chunk_len, int32_t batch) : n_ctx(chunk_len) {
        n_seq = std::max(1, batch / n_ctx);
        n_batch = batch >= n_ctx ? n_seq * n_ctx : batch;
        first = n_ctx / 2;
        n_scored = n_ctx - 1 - first;
    }
};

/// One model with its context that yields the logits of the scored halves.
class Runner {
public:
    Runner(const std::filesystem::path& path, const Plan& plan, const EvalOptions& options,
           const Cancellation& cancellation)
        : model_(load(path, options)),
          plan_(plan),
          context_(model_, context_options(plan, options, cancellation)) {
        batch_.reserve(static_cast<size_t>(plan.n_batch));
    }

    const Model& model() const { return model_; }
    double decode_seconds() const { return decode_seconds_; }

    /// Decodes chunks [first_chunk, first_chunk + n).
    void decode(const TokenChunks& chunks, int32_t first_chunk, int32_t n) {
        const auto start = std::chrono::steady_clock::now();
        context_.clear();
        collected_.clear();
        for (int32_t begin = 0; begin < plan_.n_ctx; begin += plan_.n_batch) {
            const int32_t end = std::min(begin + plan_.n_batch, plan_.n_ctx);
            decode_positions(chunks, first_chunk, n, begin, end);
        }
        decode_seconds_ += seconds_since(start);
    }

    /// Logits of the `position`-th scored position of the `sequence`-th chunk of the last decode.
    std::span<const float> logits(int32_t sequence, int32_t position) const {
        const auto n_vocab = static_cast<size_t>(model_.n_vocab());
        const auto per_chunk = static_cast<size_t>(plan_.n_ctx - plan_.first);
        const size_t row =
            static_cast<size_t>(sequence) * per_chunk + static_cast<size_t>(position);
        if (plan_.n_batch >= plan_.n_ctx) {
            return rows_.subspan(row * n_vocab, n_vocab);
        }
        return std::span(collected_).subspan(row * n_vocab, n_vocab);
    }

private:
    static Model load(const std::filesystem::path& path, const EvalOptions& options) {
        model::LoadOptions load_options;
        load_options.use_extra_bufts = options.use_extra_bufts;
        load_options.n_gpu_layers = options.n_gpu_layers;
        Model loaded = Model::load(path, load_options);
        loaded.require_causal("a KL evaluation");
        return loaded;
    }

    static ContextOptions context_options(const Plan& plan, const EvalOptions& options,
                                          const Cancellation& cancellation) {
        ContextOptions context;
        context.n_seq_max = static_cast<uint32_t>(plan.n_seq);
        context.n_ctx = static_cast<uint32_t>(plan.n_seq) * static_cast<uint32_t>(plan.n_ctx);
        context.n_batch = static_cast<uint32_t>(plan.n_batch);
        context.n_ubatch = static_cast<uint32_t>(options.n_ubatch);
        context.flash_attention = options.flash_attention;
        context.n_threads = options.n_threads;
        context.cancellation = &cancellation;
        return context;
    }

    void decode_positions(const TokenChunks& chunks, int32_t first_chunk, int32_t n, int32_t begin,
                          int32_t end) {
        batch_.clear();
        size_t n_outputs = 0;
        for (int32_t sequence = 0; sequence < n; ++sequence) {
            const std::span<const Token> chunk = chunks.chunk(first_chunk + sequence);
            for (int32_t position = begin; position < end; ++position) {
                const bool scored = position >= plan_.first;
                batch_.add(chunk[static_cast<size_t>(position)], position, sequence, scored);
                n_outputs += scored ? 1 : 0;
            }
        }
        context_.decode(batch_);
        if (plan_.n_batch >= plan_.n_ctx) {
            rows_ = context_.all_logits(n_outputs);
        } else if (n_outputs > 0) {
            const std::span<const float> rows = context_.all_logits(n_outputs);
            collected_.insert(collected_.end(), rows.begin(), rows.end());
        }
    }

    Model model_;
    Plan plan_;
    Context context_;
    Batch batch_;
    /// Whole chunks in one decode: a view of llama.cpp's buffer. Otherwise copies.
    std::span<const float> rows_;
    std::vector<float> collected_;
    double decode_seconds_ = 0.0;
};

/// Teacher rows of all chunks of a batch.
class TeacherRows {
public:
    TeacherRows(const Plan& plan, size_t n_vocab)
        : n_vocab_(n_vocab),
          rows_(static_cast<size_t>(plan.n_seq) * static_cast<size_t>(plan.n_scored)),
          codes_(rows_.size() * n_vocab) {}

    void encode(size_t i, std::span<const float> logits) {
        rows_[i] = encode_teacher_row(logits, std::span(codes_).subspan(i * n_vocab_, n_vocab_));
    }
    const TeacherRow& row(size_t i) const { return rows_[i]; }

private:
    size_t n_vocab_;
    std::vector<TeacherRow> rows_;
    std::vector<uint16_t> codes_;
};

void check_options(const EvalOptions& options, int32_t chunk_len) {
    if (chunk_len < 4 || options.n_batch < 1 || options.n_ubatch < 1) {
        throw Error(
            ErrorKind::usage,
            fmt::format(
                "chunks of {} tokens in batches of {} ({}): at least 4 tokens and 1 are needed",
                chunk_len, options.n_batch, options.n_ubatch),
            "evaluate_kl");
    }
}

void check_same_vocabulary(const Model& teacher, const Model& student) {
    if (teacher.n_vocab() != student.n_vocab()) {
        throw Error(ErrorKind::usage,
                    fmt::format("its vocabulary has {} tokens, the reference's has {}",
                                student.n_vocab(), teacher.n_vocab()),
                    student.path().string(), "compare models that are quantizations of one model");
    }
}

void check_tokens(const TokenChunks& chunks, const Model& teacher) {
    const int32_t n_vocab = teacher.n_vocab();
    const bool valid = std::all_of(chunks.tokens.begin(), chunks.tokens.end(),
                                   [&](Token t) { return t >= 0 && t < n_vocab; });
    if (!valid || chunks.n_chunks() == 0) {
        throw Error(ErrorKind::usage,
                    valid ? "no whole chunk of tokens"
                          : "the text has tokens that are not in the vocabulary",
                    teacher.path().string());
    }
}

KlReport make_report(const Runner& student, const Plan& plan, int32_t n_chunks,
                     std::span<const TokenScore> scores, bool keep_token_kl) {
    KlReport report;
    report.path = student.model().path();
    report.description = student.model().description();
    report.size_bytes = std::filesystem::file_size(report.path);
    report.bits_per_weight = 8.0 * static_cast<double>(student.model().size_bytes()) /
                             static_cast<double>(std::max<uint64_t>(student.model().n_params(), 1));
    report.n_chunks = n_chunks;
    report.n_ctx = plan.n_ctx;
    report.statistics = kl_statistics(scores);
    const auto per_chunk = static_cast<size_t>(plan.n_scored);
    for (size_t begin = 0; begin < scores.size(); begin += per_chunk) {
        double sum = 0.0;
        for (const TokenScore& score : scores.subspan(begin, per_chunk)) {
            sum += score.kl_nats;
        }
        report.chunk_mean_kl.push_back(sum / static_cast<double>(per_chunk));
    }
    if (keep_token_kl) {
        for (const TokenScore& score : scores) {
            report.token_kl.push_back(static_cast<float>(score.kl_nats));
        }
    }
    if (student.decode_seconds() > 0.0) {
        report.tokens_per_second = static_cast<double>(n_chunks) * static_cast<double>(plan.n_ctx) /
                                   student.decode_seconds();
    }
    return report;
}

/// The whole evaluation; `teacher_model` is already loaded in `teacher`.
std::vector<KlReport> run(Runner& teacher, std::vector<std::unique_ptr<Runner>>& students,
                          const Plan& plan, const TokenChunks& chunks, int32_t n_chunks,
                          const EvalOptions& options, Observer& observer,
                          const Cancellation& cancellation) {
    ThreadPool pool(options.n_threads);
    TeacherRows rows(plan, static_cast<size_t>(teacher.model().n_vocab()));
    const auto per_chunk = static_cast<size_t>(plan.n_scored);
    std::vector<std::vector<TokenScore>> scores(
        students.size(), std::vector<TokenScore>(static_cast<size_t>(n_chunks) * per_chunk));

    for (int32_t first = 0; first < n_chunks; first += plan.n_seq) {
        const int32_t n = std::min(plan.n_seq, n_chunks - first);
        const int64_t n_rows = static_cast<int64_t>(n) * plan.n_scored;
        cancellation.check();
        teacher.decode(chunks, first, n);
        pool.parallel_for(n_rows, 4, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; ++i) {
                rows.encode(static_cast<size_t>(i),
                            teacher.logits(static_cast<int32_t>(i / plan.n_scored),
                                           static_cast<int32_t>(i % plan.n_scored)));
            }
        });
        for (size_t s = 0; s < students.size(); ++s) {
            cancellation.check();
            students[s]->decode(chunks, first, n);
            pool.parallel_for(n_rows, 4, [&](int64_t begin, int64_t end, int) {
                for (int64_t i = begin; i < end; ++i) {
                    const auto sequence = static_cast<int32_t>(i / plan.n_scored);
                    const auto position = static_cast<int32_t>(i % plan.n_scored);
                    const Token next = chunks.chunk(
                        first + sequence)[static_cast<size_t>(plan.first + position + 1)];
                    scores[s][static_cast<size_t>(first) * per_chunk + static_cast<size_t>(i)] =
                        score_row(students[s]->logits(sequence, position),
                                  rows.row(static_cast<size_t>(i)), next);
                }
            });
        }
        observer.stage_progress("eval", first + n, "");
    }

    std::vector<KlReport> reports;
    for (size_t s = 0; s < students.size(); ++s) {
        reports.push_back(
            make_report(*students[s], plan, n_chunks, scores[s], options.keep_token_kl));
    }
    return reports;
}

}  // namespace

std::vector<KlReport> evaluate_kl(const std::filesystem::path& teacher_path,
                                  const std::vector<std::filesystem::path>& student_paths,
                                  const TokenChunks& chunks, const EvalOptions& options,
                                  Observer& observer, const Cancellation& cancellation) {
    check_options(options, chunks.chunk_len);
    const auto started = std::chrono::steady_clock::now();
    const Plan plan(chunks.chunk_len, options.n_batch);
    const int32_t n_chunks = options.max_chunks < 0
                                 ? chunks.n_chunks()
                                 : std::min(options.max_chunks, chunks.n_chunks());

    observer.stage_begin("eval", n_chunks, "chunks");
    Runner teacher(teacher_path, plan, options, cancellation);
    check_tokens(chunks, teacher.model());
    std::vector<std::unique_ptr<Runner>> students;
    for (const auto& path : student_paths) {
        students.push_back(std::make_unique<Runner>(path, plan, options, cancellation));
        check_same_vocabulary(teacher.model(), students.back()->model());
    }
    std::vector<KlReport> reports =
        run(teacher, students, plan, chunks, n_chunks, options, observer, cancellation);
    observer.stage_end("eval", seconds_since(started), false);
    return reports;
}

std::vector<KlReport> evaluate_kl(const std::filesystem::path& teacher,
                                  const std::vector<std::filesystem::path>& students,
                                  std::string_view text, const EvalOptions& options,
                                  Observer& observer, const Cancellation& cancellation) {
    model::LoadOptions vocab_only;
    vocab_only.vocab_only = true;
    const Model vocabulary = Model::load(teacher, vocab_only);
    const std::vector<Token> tokens = model::tokenize(vocabulary, text);
    const TokenChunks chunks = model::chunk_tokens(model::special_tokens(vocabulary), tokens,
                                                   options.n_ctx, options.max_chunks);
    return evaluate_kl(teacher, students, chunks, options, observer, cancellation);
}

Estimate paired_difference(const KlReport& a, const KlReport& b) {
    if (a.chunk_mean_kl.size() != b.chunk_mean_kl.size() || a.n_ctx != b.n_ctx) {
        throw Error(ErrorKind::usage, "the reports are not about the same chunks",
                    "paired_difference");
    }
    const auto n = static_cast<double>(a.chunk_mean_kl.size());
    double mean = 0.0;
    for (size_t i = 0; i < a.chunk_mean_kl.size(); ++i) {
        mean += (a.chunk_mean_kl[i] - b.chunk_mean_kl[i]) / n;
    }
    double variance = 0.0;
    for (size_t i = 0; i < a.chunk_mean_kl.size(); ++i) {
        const double deviation = a.chunk_mean_kl[i] - b.chunk_mean_kl[i] - mean;
        variance += deviation * deviation;
    }
    Estimate estimate;
    estimate.value = mean;
    estimate.error = n > 1.0 ? std::sqrt(variance / (n - 1.0) / n) : 0.0;
    return estimate;
}

}  // namespace voodoo::eval
