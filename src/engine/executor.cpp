#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "engine/program.h"

namespace voodoo::engine {
namespace {

using graph::kNoValue;
using graph::ValueId;
using graph::ValueKind;

struct AllocatorDeleter {
    void operator()(ggml_gallocr_t allocator) const { ggml_gallocr_free(allocator); }
};
using Allocator = std::unique_ptr<ggml_gallocr, AllocatorDeleter>;

/// Values between segments (hidden states, and whatever else crosses a border), and their
/// gradients, by batch.
class Borders {
public:
    explicit Borders(size_t n_batches) : values_(n_batches), grads_(n_batches) {}

    void save(int batch, ValueId id, const ggml_tensor* tensor) {
        auto& bytes = values_[static_cast<size_t>(batch)][id];
        bytes.resize(ggml_nbytes(tensor));
        std::memcpy(bytes.data(), tensor->data, bytes.size());
    }
    void load(int batch, ValueId id, ggml_tensor* tensor) const {
        const auto& bytes = values_[static_cast<size_t>(batch)].at(id);
        VOODOO_CHECK(bytes.size() == ggml_nbytes(tensor), "border {} changed its size",
                     tensor->name);
        std::memcpy(tensor->data, bytes.data(), bytes.size());
    }
    std::span<const float> value(int batch, ValueId id) const {
        const auto& bytes = values_[static_cast<size_t>(batch)].at(id);
        return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
    }
    /// Drops the values of all batches but those that `keep` lists.
    void keep_only(const std::vector<ValueId>& keep) {
        for (auto& batch : values_) {
            std::erase_if(batch, [&](const auto& entry) {
                return std::find(keep.begin(), keep.end(), entry.first) == keep.end();
            });
        }
    }
    void add_grad(int batch, ValueId id, const float* grad, size_t n, size_t offset, size_t size) {
        auto& sum = grads_[static_cast<size_t>(batch)][id];
        if (sum.empty()) sum.resize(size, 0.0F);
        for (size_t i = 0; i < n; ++i) sum[offset + i] += grad[i];
    }
    /// Moves the gradient into the seed, zeros where there is none.
    void take_grad(int batch, ValueId id, ggml_tensor* seed) {
        auto& batch_grads = grads_[static_cast<size_t>(batch)];
        const auto found = batch_grads.find(id);
        if (found == batch_grads.end()) {
            std::memset(seed->data, 0, ggml_nbytes(seed));
            return;
        }
        std::memcpy(seed->data, found->second.data(), ggml_nbytes(seed));
        batch_grads.erase(found);
    }
    uint64_t size_bytes() const {
        uint64_t size = 0;
        for (const auto& batch : values_) {
            for (const auto& [id, bytes] : batch) size += bytes.size();
        }
        return size;
    }

private:
    std::vector<std::map<ValueId, std::vector<std::byte>>> values_;
    std::vector<std::map<ValueId, std::vector<float>>> grads_;
};

std::vector<char> find_needs_gradient(const graph::Graph& graph,
                                      const std::vector<int>& weight_index,
                                      const std::vector<char>& weight_wanted) {
    std::vector<char> needs(static_cast<size_t>(graph.size()), 0);
    for (ValueId id = 0; id < graph.size(); ++id) {
        const graph::Value& value = graph[id];
        const auto i = static_cast<size_t>(id);
        if (value.kind == ValueKind::weight)
            needs[i] = weight_wanted[static_cast<size_t>(weight_index[i])];
        // Indices carry no gradient; a view of a weight has the weight's stored type, whatever that
        // is.
        if (value.kind == ValueKind::op && value.type != GGML_TYPE_F32 &&
            value.type != GGML_TYPE_F16 && value.type != GGML_TYPE_BF16) {
            continue;
        }
        for (const ValueId src : value.src) {
            if (src != kNoValue && needs[static_cast<size_t>(src)]) needs[i] = 1;
        }
    }
    return needs;
}

/// Clears what no gradient of the logits reaches, such as the scores behind a selection of rows.
void drop_unreached(const graph::Graph& graph, std::vector<char>& needs) {
    std::vector<char> reached(static_cast<size_t>(graph.size()), 0);
    reached[static_cast<size_t>(graph.output)] = 1;
    for (ValueId id = graph.size() - 1; id >= 0; --id) {
        const auto i = static_cast<size_t>(id);
        if (reached[i] && needs[i]) {
            for (const ValueId src : graph[id].src) {
                if (src != kNoValue) reached[static_cast<size_t>(src)] = 1;
            }
        } else {
            needs[i] = 0;
        }
    }
}

}  // namespace

struct Executor::Impl {
    using AfterSegment = Executor::AfterSegment;
    graph::Graph graph;
    ExecutorOptions options;
    device::Backend backend;
    ThreadPool pool;
    std::vector<WeightInfo> weights;
    std::vector<int> weight_index;
    std::vector<char> needs_gradient;
    SegmentPlan plan;
    ConstantPool constants;
    ProgramShared shared;
    std::vector<std::unique_ptr<Program>> body;
    std::unique_ptr<Program> tail;
    HostBlock body_weights, tail_weights;
    Allocator body_allocator, tail_allocator;
    Program* active_body = nullptr;
    bool tail_active = false;
    uint64_t border_bytes = 0;

    Impl(graph::Graph g, ExecutorOptions o)
        : graph(std::move(g)),
          options(std::move(o)),
          backend(device::Backend::cpu(options.n_threads)),
          pool(options.n_threads),
          constants(graph),
          shared{graph, backend, constants, weight_index, needs_gradient} {
        index_weights();
        shared.moment_leader.assign(weights.size(), -1);
        plan = plan_segments(graph, options.memory_bytes, options.gradients ? 2 : 1);
        for (const Segment& segment : plan.body) {
            ProgramOptions program;
            program.backward = options.gradients;
            program.moments = options.moments;
            program.full_moments = options.full_moments;
            program.exact_gelu = options.exact_gelu;
            program.stored_types = options.stored_types;
            body.push_back(std::make_unique<Program>(shared, segment, program));
        }
        ProgramOptions program;
        program.backward = options.gradients;
        program.exact_gelu = options.exact_gelu;
        program.stored_types = options.stored_types;
        program.accumulate = true;
        program.n_columns = slice();
        tail = std::make_unique<Program>(shared, plan.tail, program);
        body_allocator.reset(ggml_gallocr_new(backend.buffer_type()));
        tail_allocator.reset(ggml_gallocr_new(backend.buffer_type()));
    }

    /// Tokens per slice of the tail; the slices must cover the batch.
    int64_t slice() const {
        if (!plan.tail_is_row_wise) return 0;
        int64_t n = std::min(options.logits_slice, graph.n_tokens);
        while (graph.n_tokens % n != 0) --n;
        return n;
    }

    void index_weights() {
        weight_index.assign(static_cast<size_t>(graph.size()), -1);
        std::vector<char> wanted;
        for (const ValueId id : graph.weights()) {
            const graph::Value& value = graph[id];
            weight_index[static_cast<size_t>(id)] = static_cast<int>(weights.size());
            WeightInfo info;
            info.name = value.name;
            info.ne = value.ne;
            info.stored_type = value.type;
            for (ValueId reader = 0; reader < graph.size(); ++reader) {
                if (graph[reader].kind != ValueKind::op) continue;
                for (const ValueId src : graph[reader].src) {
                    if (src != kNoValue && graph.root(src) == id) ++info.n_uses;
                }
            }
            wanted.push_back(options.gradients &&
                             (!options.wants_gradient || options.wants_gradient(info)));
            weights.push_back(std::move(info));
        }
        needs_gradient = find_needs_gradient(graph, weight_index, wanted);
        drop_unreached(graph, needs_gradient);
    }

    void activate_tail(WeightSource& source) {
        if (!tail_active) {
            tail_weights = HostBlock(tail->weight_bytes());
            tail->activate(tail_weights, tail_allocator.get());
            tail_active = true;
        }
        tail->load_weights(source);
    }

    void activate_body(size_t i, WeightSource& source) {
        Program* program = body[i].get();
        if (active_body != program) {
            if (body_weights.size_bytes() == 0) {
                size_t largest = 0;
                for (const auto& p : body) largest = std::max(largest, p->weight_bytes());
                body_weights = HostBlock(largest);
            }
            program->activate(body_weights, body_allocator.get());
            active_body = program;
        }
        program->load_weights(source);
    }

    void run_forward(Program& program, int batch, std::span<const int32_t> tokens,
                     Borders& borders) {
        constants.set_tokens(tokens);
        for (const ValueId id : program.segment().inputs)
            borders.load(batch, id, program.value(id));
        program.forward();
    }

    static void save_outputs(const Program& program, int batch, Borders& borders) {
        for (const ValueId id : program.segment().outputs)
            borders.save(batch, id, program.value(id));
    }

    void run_backward(Program& program, int batch, Borders& borders) {
        for (const ValueId id : program.segment().outputs) {
            if (ggml_tensor* seed = program.seed(id)) borders.take_grad(batch, id, seed);
        }
        program.backward();
        for (const ValueId id : program.segment().inputs) {
            const ggml_tensor* grad = program.input_grad(id);
            if (grad == nullptr) continue;
            const auto n = static_cast<size_t>(ggml_nelements(grad));
            borders.add_grad(batch, id, static_cast<const float*>(grad->data), n, 0, n);
        }
    }

    /// The tail of one batch in slices. hidden: [n_tokens][n_hidden] if the tail is row-wise, else
    /// null: all from borders.
    void run_tail(int batch, const float* hidden, Borders* borders, Loss& loss,
                  bool want_gradient) {
        const int64_t n_columns = plan.tail_is_row_wise ? slice() : graph.n_tokens;
        ggml_tensor* logits = tail->value(graph.output);
        const size_t row = static_cast<size_t>(graph[plan.hidden].ne[0]);
        loss.begin_batch(batch);
        for (int64_t first = 0; first < graph.n_tokens; first += n_columns) {
            if (plan.tail_is_row_wise) {
                ggml_tensor* input = tail->value(plan.hidden);
                std::memcpy(input->data, hidden + static_cast<size_t>(first) * row,
                            ggml_nbytes(input));
            } else {
                for (const ValueId id : plan.tail.inputs) borders->load(batch, id, tail->value(id));
            }
            tail->forward();
            auto* data = static_cast<float*>(logits->data);
            if (!want_gradient) {
                loss.add(batch, first, n_columns, data, false);
                continue;
            }
            // The backward pass may need the logits themselves: the gradient goes to its own
            // memory.
            ggml_tensor* seed = tail->seed(graph.output);
            std::memcpy(seed->data, data, ggml_nbytes(seed));
            loss.add(batch, first, n_columns, static_cast<float*>(seed->data), true);
            tail->backward();
            for (const ValueId id : plan.tail.inputs) {
                const ggml_tensor* grad = tail->input_grad(id);
                if (grad == nullptr) continue;
                const size_t size = static_cast<size_t>(graph[id].n_elements());
                borders->add_grad(batch, id, static_cast<const float*>(grad->data),
                                  static_cast<size_t>(ggml_nelements(grad)),
                                  plan.tail_is_row_wise ? static_cast<size_t>(first) * row : 0,
                                  size);
            }
        }
    }

    void deliver_accumulated(GradientSink& sink) {
        for (const auto& [weight, gradient] : tail->accumulated()) {
            const WeightInfo& info = weights[static_cast<size_t>(weight)];
            const auto part = [&, w = weight, g = gradient](int64_t ith, int64_t, int) {
                const int64_t begin = info.n_rows() * ith / pool.size();
                const int64_t end = info.n_rows() * (ith + 1) / pool.size();
                if (begin < end)
                    sink.take(w, g + begin * info.ne[0], begin, end - begin, static_cast<int>(ith));
            };
            pool.parallel_for(pool.size(), 1, part);
        }
    }

    void step(Batches batches, WeightSource& source, Loss& loss, GradientSink& sink,
              const Cancellation* cancellation) {
        VOODOO_CHECK(options.gradients, "step of an executor without gradients");
        const int n_batches = static_cast<int>(batches.size());
        const auto check = [&] {
            if (cancellation != nullptr) cancellation->check();
        };
        Borders borders(batches.size());
        const size_t last = body.size() - 1;
        shared.gradient_sink = &sink;
        for (size_t s = 0; s < last; ++s) {
            activate_body(s, source);
            for (int b = 0; b < n_batches; ++b) {
                check();
                run_forward(*body[s], b, batches[static_cast<size_t>(b)], borders);
                save_outputs(*body[s], b, borders);
            }
        }
        activate_body(last, source);
        activate_tail(source);
        tail->clear_accumulated();
        for (int b = 0; b < n_batches; ++b) {
            check();
            run_forward(*body[last], b, batches[static_cast<size_t>(b)], borders);
            const auto* hidden = static_cast<const float*>(body[last]->value(plan.hidden)->data);
            if (!plan.tail_is_row_wise) save_outputs(*body[last], b, borders);
            run_tail(b, hidden, &borders, loss, true);
            run_backward(*body[last], b, borders);
        }
        deliver_accumulated(sink);
        border_bytes = borders.size_bytes();
        for (size_t s = last; s-- > 0;) {
            activate_body(s, source);
            for (int b = 0; b < n_batches; ++b) {
                check();
                run_forward(*body[s], b, batches[static_cast<size_t>(b)], borders);
                run_backward(*body[s], b, borders);
            }
        }
        shared.gradient_sink = nullptr;
    }

    void run_segment(size_t s, Batches batches, WeightSource& source, Borders& borders,
                     const Cancellation* cancellation) {
        activate_body(s, source);
        for (int b = 0; b < static_cast<int>(batches.size()); ++b) {
            if (cancellation != nullptr) cancellation->check();
            run_forward(*body[s], b, batches[static_cast<size_t>(b)], borders);
            save_outputs(*body[s], b, borders);
        }
    }

    void forward(Batches batches, WeightSource& source, MomentSink* moments,
                 const AfterSegment* after_segment,
                 const std::function<void(int, std::span<const float>)>& on_hidden,
                 const Cancellation* cancellation) {
        Borders borders(batches.size());
        for (size_t s = 0; s < body.size(); ++s) {
            shared.moment_sink = moments;
            if (moments != nullptr) moments->begin_segment(body[s]->weight_indices());
            run_segment(s, batches, source, borders, cancellation);
            shared.moment_sink = nullptr;
            if (after_segment != nullptr && (*after_segment)(body[s]->weight_indices()))
                run_segment(s, batches, source, borders, cancellation);
            border_bytes = std::max(border_bytes, borders.size_bytes());
            borders.keep_only(inputs_after(s));
        }
        if (!on_hidden) return;
        for (int b = 0; b < static_cast<int>(batches.size()); ++b)
            on_hidden(b, borders.value(b, plan.hidden));
    }

    std::vector<ValueId> inputs_after(size_t s) const {
        std::vector<ValueId> ids = plan.tail.inputs;
        ids.push_back(plan.hidden);
        for (size_t later = s + 1; later < body.size(); ++later) {
            const auto& inputs = body[later]->segment().inputs;
            ids.insert(ids.end(), inputs.begin(), inputs.end());
        }
        return ids;
    }
};

Executor::Executor(graph::Graph graph, ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(graph), std::move(options))) {}
Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;

const graph::Graph& Executor::graph() const {
    return impl_->graph;
}
const std::vector<WeightInfo>& Executor::weights() const {
    return impl_->weights;
}
int64_t Executor::n_hidden() const {
    return impl_->graph[impl_->plan.hidden].ne[0];
}
int64_t Executor::n_vocab() const {
    return impl_->graph.n_vocab();
}
size_t Executor::n_segments() const {
    return impl_->body.size();
}

int Executor::head_weight() const {
    return impl_->weight_index[static_cast<size_t>(impl_->plan.head_weight)];
}

int Executor::find_weight(std::string_view name) const {
    for (size_t i = 0; i < impl_->weights.size(); ++i) {
        if (impl_->weights[i].name == name) return static_cast<int>(i);
    }
    return -1;
}

ExecutorMemory Executor::memory() const {
    ExecutorMemory memory;
    memory.weights = impl_->body_weights.size_bytes() + impl_->tail_weights.size_bytes();
    memory.activations = ggml_gallocr_get_buffer_size(impl_->body_allocator.get(), 0) +
                         ggml_gallocr_get_buffer_size(impl_->tail_allocator.get(), 0);
    memory.constants = impl_->constants.size_bytes();
    memory.borders = impl_->border_bytes;
    return memory;
}

void Executor::forward(Batches batches, WeightSource& weights, MomentSink* moments,
                       const std::function<void(int, std::span<const float>)>& on_hidden,
                       const Cancellation* cancellation) {
    impl_->forward(batches, weights, moments, nullptr, on_hidden, cancellation);
}

void Executor::forward_by_segment(Batches batches, WeightSource& weights, MomentSink& moments,
                                  const AfterSegment& after_segment,
                                  const Cancellation* cancellation) {
    impl_->forward(batches, weights, &moments, &after_segment, nullptr, cancellation);
}

int Executor::moment_leader(int index) const {
    return impl_->shared.moment_leader[static_cast<size_t>(index)];
}

void Executor::logits(int n_batches, WeightSource& weights,
                      const std::function<std::span<const float>(int)>& hidden, Loss& loss,
                      const Cancellation* cancellation) {
    if (!impl_->plan.tail_is_row_wise) {
        throw Error(ErrorKind::unsupported_model, "the model's head is not applied token by token");
    }
    impl_->activate_tail(weights);
    for (int b = 0; b < n_batches; ++b) {
        if (cancellation != nullptr) cancellation->check();
        impl_->run_tail(b, hidden(b).data(), nullptr, loss, false);
    }
}

void Executor::load_tail(WeightSource& weights) {
    impl_->activate_tail(weights);
}

int64_t Executor::slice_length() const {
    return impl_->plan.tail_is_row_wise ? impl_->slice() : impl_->graph.n_tokens;
}

std::span<const float> Executor::tail_slice(std::span<const float> hidden) {
    VOODOO_CHECK(impl_->tail_active, "tail_slice before load_tail");
    ggml_tensor* input = impl_->tail->value(impl_->plan.hidden);
    VOODOO_CHECK(hidden.size_bytes() == ggml_nbytes(input), "a slice of {} floats", hidden.size());
    std::memcpy(input->data, hidden.data(), hidden.size_bytes());
    impl_->tail->forward();
    const ggml_tensor* logits = impl_->tail->value(impl_->graph.output);
    return {static_cast<const float*>(logits->data), static_cast<size_t>(ggml_nelements(logits))};
}

bool Executor::tail_is_row_wise() const {
    return impl_->plan.tail_is_row_wise;
}

void Executor::step(Batches batches, WeightSource& weights, Loss& loss, GradientSink& sink,
                    const Cancellation* cancellation) {
    impl_->step(batches, weights, loss, sink, cancellation);
}

}  // namespace voodoo::engine
