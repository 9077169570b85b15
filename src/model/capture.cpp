#include "model/capture.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace voodoo::model {
namespace {

constexpr const char* kLogitsName = "result_output";

/// Sees every node before it is computed and copies what the graph layer needs of it.
class Recorder {
public:
    explicit Recorder(const CaptureOptions& options)
        : stop_before_compute_(!options.compute_logits), on_weight_(options.on_weight) {}

    static bool on_node(ggml_tensor* node, bool ask, void* self) {
        if (ask) static_cast<Recorder*>(self)->record(node);
        return false;
    }

    const Cancellation* stop() const { return stop_before_compute_ ? &stop_ : nullptr; }
    /// Finds the logits: by name, else the last F32 node of shape [n_vocab, n_tokens].
    bool find_output(int64_t n_vocab, int64_t n_tokens) {
        for (size_t i = trace_.order.size(); trace_.output < 0 && i-- > 0;) {
            const graph::TraceTensor& t = trace_.tensors[static_cast<size_t>(trace_.order[i])];
            if (t.type == GGML_TYPE_F32 && t.ne == graph::Shape{n_vocab, n_tokens, 1, 1})
                trace_.output = trace_.order[i];
        }
        return trace_.output >= 0;
    }
    graph::Trace take() { return std::move(trace_); }

private:
    void record(ggml_tensor* node) {
        // The scheduler asks about all nodes of a split before it computes the first, so nothing is
        // lost.
        stop_.request();
        trace_.order.push_back(id_of(node));
        if (std::strcmp(node->name, kLogitsName) == 0) trace_.output = trace_.order.back();
    }

    int id_of(ggml_tensor* tensor) {
        if (const auto known = ids_.find(tensor); known != ids_.end()) return known->second;
        // Known before its sources are: a conversion (ggml_cast) names itself as its second source.
        const int id = static_cast<int>(trace_.tensors.size());
        ids_.emplace(tensor, id);
        trace_.tensors.emplace_back();
        graph::TraceTensor t;
        t.name = tensor->name;
        t.op = tensor->op;
        t.type = tensor->type;
        std::copy_n(tensor->ne, GGML_MAX_DIMS, t.ne.begin());
        std::copy_n(tensor->nb, GGML_MAX_DIMS, t.nb.begin());
        std::memcpy(t.op_params.data(), tensor->op_params, sizeof(tensor->op_params));
        t.view_offset = tensor->view_offs;
        if (tensor->view_src != nullptr) t.view_src = id_of(tensor->view_src);
        int n_src = GGML_MAX_SRC;
        while (n_src > 0 && tensor->src[n_src - 1] == nullptr) --n_src;
        for (int i = 0; i < n_src; ++i)
            t.src.push_back(tensor->src[i] == nullptr ? -1 : id_of(tensor->src[i]));
        if (tensor->op == GGML_OP_NONE && tensor->view_src == nullptr) record_leaf(tensor, t);
        trace_.tensors[static_cast<size_t>(id)] = std::move(t);
        return id;
    }

    void record_leaf(ggml_tensor* tensor, graph::TraceTensor& t) const {
        VOODOO_CHECK(tensor->buffer != nullptr, "leaf {} has no buffer", tensor->name);
        t.is_weight =
            ggml_backend_buffer_get_usage(tensor->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
        if (t.is_weight) {
            if (on_weight_) on_weight_(tensor);
            return;
        }
        auto data = std::make_shared<graph::Bytes>(ggml_nbytes(tensor));
        ggml_backend_tensor_get(tensor, data->data(), 0, data->size());
        t.is_zero =
            std::all_of(data->begin(), data->end(), [](std::byte b) { return b == std::byte{0}; });
        // Small zero leaves stay constants: an index 0 or a position 0 is data, not a fresh cache.
        constexpr size_t kSmall = 4096;
        if (t.is_zero && (data->size() <= kSmall || tensor->type == GGML_TYPE_I32 ||
                          tensor->type == GGML_TYPE_I64)) {
            t.is_zero = false;
        }
        if (!t.is_zero) t.data = std::move(data);
    }

    bool stop_before_compute_;
    std::function<void(ggml_tensor*)> on_weight_;
    Cancellation stop_;
    graph::Trace trace_;
    std::unordered_map<const ggml_tensor*, int> ids_;
};

ContextOptions context_options(size_t n_tokens, const CaptureOptions& options, Recorder& recorder) {
    ContextOptions context;
    const auto n = static_cast<uint32_t>(n_tokens);
    context.n_ctx = n;
    context.n_batch = n;
    context.n_ubatch = n;
    context.n_seq_max = static_cast<uint32_t>(options.n_sequences);
    context.flash_attention = FlashAttention::off;
    context.type_k = GGML_TYPE_F32;
    context.type_v = GGML_TYPE_F32;
    context.n_threads = options.n_threads;
    context.offload_kqv = false;
    context.op_offload = false;
    context.cb_eval = &Recorder::on_node;
    context.cb_eval_data = &recorder;
    context.cancellation = recorder.stop();
    return context;
}

}  // namespace

Capture capture(const Model& model, std::span<const Token> tokens, const CaptureOptions& options) {
    const size_t n_sequences = static_cast<size_t>(std::max(options.n_sequences, 1));
    if (tokens.empty() || tokens.size() % n_sequences != 0) {
        throw Error(ErrorKind::usage,
                    fmt::format("{} tokens do not make {} sequences", tokens.size(), n_sequences));
    }
    VOODOO_CHECK(!model.options().use_extra_bufts, "capture of a model with repacked weights");
    Recorder recorder(options);
    Context context(model, context_options(tokens.size(), options, recorder));
    const size_t length = tokens.size() / n_sequences;
    Batch batch;
    batch.reserve(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.add(tokens[i], static_cast<int32_t>(i % length), static_cast<int32_t>(i / length),
                  true);
    }
    Capture result;
    const auto has_output = [&] {
        return recorder.find_output(model.n_vocab(), static_cast<int64_t>(tokens.size()));
    };
    try {
        context.decode(batch);
        if (options.compute_logits) {
            const auto logits = context.all_logits(tokens.size());
            result.logits.assign(logits.begin(), logits.end());
        }
    } catch (const Error& error) {
        // Our own request to stop, made when the whole graph had been seen.
        if (error.kind() != ErrorKind::interrupted) throw;
    }
    if (!has_output()) {
        throw Error(ErrorKind::unsupported_model, "the model's graph has no logits",
                    model.path().string());
    }
    result.trace = recorder.take();
    result.trace.tokens.assign(tokens.begin(), tokens.end());
    result.trace.n_sequences = options.n_sequences;
    return result;
}

}  // namespace voodoo::model
