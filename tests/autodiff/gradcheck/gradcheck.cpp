// The shared gradient check: builder, numeric gradient, comparison.
#include "gradcheck.h"

#include <fmt/format.h>
#include <ggml-alloc.h>
#include <ggml-cpu.h>

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace voodoo::gradcheck {

namespace {

constexpr Limits kLimits[] = {
    // F32 round-off of the forward, 6e-8 per term over a step of 2e-2 of the input scale, is 1e-5
    // to 1e-4 where
    // functions saturate; the stencil's own error is smaller.
    {5e-4, 5e-7, 1e-3, 2e-2, "smooth: derivatives of order 1"},
    // The stencil is exact for polynomials up to degree 4 whatever the step, so a wide one makes
    // round-off small.
    {2e-5, 1e-9, 5e-5, 0.25, "linear: at most quadratic in each input"},
    // The exact graph stands in for CPU kernels that read an F16 table or round an operand to BF16
    // or 8 bits. What
    // is left: factors that the rule takes in exact form while the forward used the rounded one,
    // 2^-11 each.
    {1e-3, 1e-6, 2e-3, 2e-2,
     "table: the plain forward is a staircase, the exact graph is differenced"},
};

std::vector<char> bytes_of(const std::vector<float>& values) {
    std::vector<char> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

int64_t n_elements(const Shape& ne) {
    return ne[0] * ne[1] * ne[2] * ne[3];
}

double norm_of(const std::vector<double>& v) {
    double sum = 0.0;
    for (const double x : v) {
        sum += x * x;
    }
    return std::sqrt(sum);
}

std::vector<float> random_values(int64_t n, const std::string& stream) {
    Random random(11, stream);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) {
        v = static_cast<float>(random.normal());
    }
    return values;
}

std::string stream_of(const Case& c) {
    return c.rule + "/" + c.name;
}

double dot(const std::vector<double>& values, const std::vector<float>& cotangent) {
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
        sum += values[i] * static_cast<double>(cotangent[i]);
    }
    return sum;
}

/// One forward graph whose objective can be evaluated again after its inputs were moved.
class Forward {
public:
    Forward(const Case& c, double scale, bool exact)
        : session_(1),
          builder_(session_.leaf_context(), session_.node_context(), stream_of(c), scale, exact) {
        out_ = c.build(builder_);
        cotangent_ = random_values(ggml_nelements(out_), stream_of(c) + "/R");
        session_.allocate_leaves(builder_.leaves());
        session_.build({out_});
    }

    std::vector<double> output() {
        session_.compute();
        return values_of(out_);
    }
    double objective() { return dot(output(), cotangent_); }

    /// 4th-order central difference of the objective along `direction` of one input.
    double derivative(size_t input, const std::vector<float>& direction, double step) {
        auto* data = static_cast<float*>(builder_.inputs()[input]->data);
        const std::vector<float> start(data, data + direction.size());
        const auto at = [&](double h) {
            for (size_t i = 0; i < direction.size(); ++i) {
                data[i] = static_cast<float>(static_cast<double>(start[i]) +
                                             h * static_cast<double>(direction[i]));
            }
            return objective();
        };
        const double near = at(step / 2) - at(-step / 2);
        const double far = at(step) - at(-step);
        std::copy(start.begin(), start.end(), data);
        return (8.0 * near - far) / (6.0 * step);
    }

    const Builder& builder() const { return builder_; }
    const std::vector<float>& cotangent() const { return cotangent_; }

private:
    Session session_;
    Builder builder_;
    ggml_tensor* out_ = nullptr;
    std::vector<float> cotangent_;
};

}  // namespace

const Limits& limits_of(Tolerance tolerance) {
    return kLimits[static_cast<int>(tolerance)];
}

Builder::Builder(ggml_context* leaves, ggml_context* nodes, const std::string& stream, double scale,
                 bool exact)
    : leaves_(leaves), nodes_(nodes), random_(7, stream), scale_(scale), exact_(exact) {}

ggml_tensor* Builder::leaf(ggml_type type, const Shape& ne, std::vector<char> bytes) {
    ggml_tensor* t = ggml_new_tensor(leaves_, type, 4, ne.data());
    ggml_format_name(t, "leaf %zu", all_.size());
    all_.push_back({t, std::move(bytes)});
    return t;
}

ggml_tensor* Builder::leaf_f32(const Shape& ne, const std::vector<float>& values) {
    return leaf(GGML_TYPE_F32, ne, bytes_of(values));
}

ggml_tensor* Builder::input(const Shape& ne, const Avoid& avoid) {
    std::vector<float> values(static_cast<size_t>(n_elements(ne)));
    for (float& v : values) {
        bool bad = true;
        while (bad) {
            v = static_cast<float>(random_.normal() * scale_);
            bad = false;
            for (const double p : avoid.points) {
                bad = bad || std::fabs(static_cast<double>(v) - p) < avoid.margin;
            }
        }
    }
    inputs_.push_back(leaf_f32(ne, values));
    return inputs_.back();
}

ggml_tensor* Builder::input_between(const Shape& ne, double low, double high) {
    std::vector<float> values(static_cast<size_t>(n_elements(ne)));
    for (float& v : values) {
        v = static_cast<float>(low + (high - low) * random_.uniform());
    }
    inputs_.push_back(leaf_f32(ne, values));
    return inputs_.back();
}

ggml_tensor* Builder::weight(ggml_type type, const Shape& ne) {
    std::vector<float> values(static_cast<size_t>(n_elements(ne)));
    for (float& v : values) {
        v = static_cast<float>(random_.normal() * scale_);
    }
    const int64_t n_rows = n_elements(ne) / ne[0];
    std::vector<char> bytes(ggml_row_size(type, ne[0]) * static_cast<size_t>(n_rows));
    ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_rows, ne[0], nullptr);
    if (exact_) {
        ggml_get_type_traits(type)->to_float(bytes.data(), values.data(), n_elements(ne));
        inputs_.push_back(leaf_f32(ne, values));
    } else {
        inputs_.push_back(leaf(type, ne, std::move(bytes)));
    }
    return inputs_.back();
}

ggml_tensor* Builder::constant(const Shape& ne, const std::function<float(int64_t)>& value) {
    std::vector<float> values(static_cast<size_t>(n_elements(ne)));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = value(static_cast<int64_t>(i));
    }
    return leaf_f32(ne, values);
}

ggml_tensor* Builder::indices_i32(const Shape& ne, const std::function<int64_t(int64_t)>& value) {
    std::vector<char> bytes(static_cast<size_t>(n_elements(ne)) * sizeof(int32_t));
    for (int64_t i = 0; i < n_elements(ne); ++i) {
        const auto v = static_cast<int32_t>(value(i));
        std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(v), &v, sizeof(v));
    }
    return leaf(GGML_TYPE_I32, ne, std::move(bytes));
}

ggml_tensor* Builder::indices_i64(const Shape& ne, const std::function<int64_t(int64_t)>& value) {
    std::vector<char> bytes(static_cast<size_t>(n_elements(ne)) * sizeof(int64_t));
    for (int64_t i = 0; i < n_elements(ne); ++i) {
        const int64_t v = value(i);
        std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(v), &v, sizeof(v));
    }
    return leaf(GGML_TYPE_I64, ne, std::move(bytes));
}

ggml_tensor* Builder::window(ggml_tensor* root, const Shape& ne, const Shape& stride,
                             int64_t offset) {
    ggml_tensor* view = ggml_view_1d(nodes_, root, 1, sizeof(float) * static_cast<size_t>(offset));
    for (int d = 0; d < 4; ++d) {
        view->ne[d] = ne[d];
        view->nb[d] = sizeof(float) * static_cast<size_t>(stride[d]);
    }
    return view;
}

Session::Session(int n_threads) {
    const ggml_init_params params = {ggml_tensor_overhead() * 4096 + ggml_graph_overhead(), nullptr,
                                     true};
    leaves_ = ggml_init(params);
    nodes_ = ggml_init(params);
    backend_ = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend_, n_threads);
}

Session::~Session() {
    ggml_gallocr_free(allocator_);
    ggml_backend_buffer_free(leaf_buffer_);
    ggml_backend_free(backend_);
    ggml_free(nodes_);
    ggml_free(leaves_);
}

void Session::allocate_leaves(const std::vector<Builder::Leaf>& leaves) {
    leaf_buffer_ = ggml_backend_alloc_ctx_tensors(leaves_, backend_);
    VOODOO_CHECK(leaf_buffer_ != nullptr, "no memory for leaves");
    for (const Builder::Leaf& leaf : leaves) {
        VOODOO_CHECK(leaf.bytes.size() == ggml_nbytes(leaf.tensor), "leaf size");
        std::memcpy(leaf.tensor->data, leaf.bytes.data(), leaf.bytes.size());
    }
}

void Session::build(const std::vector<ggml_tensor*>& outputs) {
    graph_ = ggml_new_graph(nodes_);
    for (ggml_tensor* out : outputs) {
        ggml_set_output(out);
        if (out->view_src != nullptr) {
            ggml_set_output(out->view_src);
        }
        ggml_build_forward_expand(graph_, out);
    }
    ggml_gallocr_free(allocator_);
    allocator_ = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_));
    VOODOO_CHECK(ggml_gallocr_alloc_graph(allocator_, graph_), "no memory for nodes");
}

void Session::compute() {
    VOODOO_CHECK(ggml_backend_graph_compute(backend_, graph_) == GGML_STATUS_SUCCESS,
                 "compute failed");
}

std::vector<ggml_tensor*> Session::nodes() const {
    ggml_tensor** first = ggml_graph_nodes(graph_);
    return {first, first + ggml_graph_n_nodes(graph_)};
}

std::vector<double> values_of(const ggml_tensor* t) {
    std::vector<double> out;
    out.reserve(static_cast<size_t>(ggml_nelements(t)));
    for (int64_t i = 0; i < ggml_nelements(t); ++i) {
        int64_t at[4];
        ggml_unravel_index(t, i, at, at + 1, at + 2, at + 3);
        const char* p = static_cast<const char*>(t->data);
        for (int d = 0; d < 4; ++d) {
            p += at[d] * static_cast<int64_t>(t->nb[d]);
        }
        if (t->type == GGML_TYPE_F16) {
            ggml_fp16_t half{};
            std::memcpy(&half, p, sizeof(half));
            out.push_back(static_cast<double>(ggml_fp16_to_fp32(half)));
        } else {
            VOODOO_CHECK(t->type == GGML_TYPE_F32, "values_of: type {}", ggml_type_name(t->type));
            float value = 0.0F;
            std::memcpy(&value, p, sizeof(value));
            out.push_back(static_cast<double>(value));
        }
    }
    return out;
}

std::string Verdict::text() const {
    return fmt::format("relative L2 {:.2e}, 1 - cosine {:.2e}, worst {:.2e}, |reference| {:.2e}{}",
                       relative_l2, 1.0 - cosine, worst, reference_norm,
                       vacuous ? " (vacuous)" : "");
}

Verdict compare(const std::vector<double>& analytic, const std::vector<double>& numeric,
                double cotangent_norm, const Limits& limits) {
    Verdict v;
    VOODOO_CHECK(analytic.size() == numeric.size(), "compare: {} values against {}",
                 analytic.size(), numeric.size());
    double difference = 0.0;
    double product = 0.0;
    double worst = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < numeric.size(); ++i) {
        const double d = analytic[i] - numeric[i];
        difference += d * d;
        product += analytic[i] * numeric[i];
        // written so that a NaN sticks
        worst = std::fabs(d) <= worst ? worst : std::fabs(d);
        largest = std::max(largest, std::fabs(numeric[i]));
    }
    v.reference_norm = norm_of(numeric);
    v.vacuous = !(v.reference_norm > 1e-5 * cotangent_norm);
    v.relative_l2 = std::sqrt(difference) / v.reference_norm;
    v.cosine = product / (norm_of(analytic) * v.reference_norm);
    v.worst = worst / largest;
    v.pass = !v.vacuous && v.relative_l2 <= limits.relative_l2 &&
             1.0 - v.cosine <= limits.one_minus_cosine && v.worst <= limits.worst;
    return v;
}

Reference numeric_reference(const Case& c, double scale) {
    constexpr int kDirections = 6;
    Forward forward(c, scale, c.has_exact());
    Reference reference;
    std::vector<double> cotangent(forward.cotangent().begin(), forward.cotangent().end());
    reference.cotangent_norm = norm_of(cotangent);
    const double step = limits_of(c.tolerance).step * scale;
    const size_t n_inputs = forward.builder().inputs().size();
    for (size_t i = 0; i < n_inputs; ++i) {
        const int64_t n = ggml_nelements(forward.builder().inputs()[i]);
        std::vector<double>& numeric = reference.numeric.emplace_back();
        auto& directions = reference.directions.emplace_back();
        if (c.directional) {
            for (int k = 0; k < kDirections; ++k) {
                directions.push_back(
                    random_values(n, fmt::format("{}/direction {} {}", stream_of(c), i, k)));
                numeric.push_back(forward.derivative(i, directions.back(), step));
            }
            continue;
        }
        std::vector<float> unit(static_cast<size_t>(n), 0.0F);
        for (float& u : unit) {
            u = 1.0F;
            numeric.push_back(forward.derivative(i, unit, step));
            u = 0.0F;
        }
    }
    if (c.has_exact()) {
        const std::vector<double> exact = forward.output();
        const std::vector<double> plain = Forward(c, scale, false).output();
        std::vector<double> difference(exact.size());
        for (size_t i = 0; i < exact.size(); ++i) {
            difference[i] = plain[i] - exact[i];
        }
        reference.forward_difference = norm_of(difference) / norm_of(exact);
    }
    return reference;
}

Outcome check(const Case& c, double scale, const Reference& reference,
              const autodiff::TapeOptions& options,
              const std::function<const autodiff::Rule*(const ggml_tensor*)>& rule_override) {
    Session session(3);  // more threads than some tensors have rows
    Builder builder(session.leaf_context(), session.node_context(), stream_of(c), scale, false);
    ggml_tensor* out = c.build(builder);
    const std::vector<float> cotangent_values =
        random_values(ggml_nelements(out), stream_of(c) + "/R");
    ggml_tensor* cotangent =
        builder.constant({out->ne[0], out->ne[1], out->ne[2], out->ne[3]},
                         [&](int64_t i) { return cotangent_values[static_cast<size_t>(i)]; });
    std::vector<Builder::Leaf> leaves = builder.leaves();

    autodiff::TapeHooks hooks;
    hooks.rule_override = rule_override;
    hooks.constant_i32 = [&](const ggml_tensor* wide) {
        ggml_tensor* narrow = ggml_new_tensor(session.leaf_context(), GGML_TYPE_I32, 4, wide->ne);
        for (size_t k = 0, n_known = leaves.size(); k < n_known; ++k) {
            if (leaves[k].tensor == wide) {
                std::vector<char> bytes(ggml_nbytes(narrow));
                for (int64_t i = 0; i < ggml_nelements(wide); ++i) {
                    std::memcpy(&bytes[static_cast<size_t>(i) * 4],
                                &leaves[k].bytes[static_cast<size_t>(i) * 8], 4);
                }
                leaves.push_back({narrow, bytes});
            }
        }
        return narrow;
    };
    autodiff::Tape tape(session.node_context(), options, hooks);

    ggml_cgraph* order = ggml_new_graph(session.node_context());
    ggml_build_forward_expand(order, out);
    std::vector<ggml_tensor*> forward(ggml_graph_nodes(order),
                                      ggml_graph_nodes(order) + ggml_graph_n_nodes(order));
    const std::pair<ggml_tensor*, ggml_tensor*> seed{out, cotangent};
    const autodiff::BackwardResult result =
        autodiff::backward(tape, forward, {&seed, 1}, builder.inputs());

    std::vector<ggml_tensor*> outputs = {out};
    for (ggml_tensor* input : builder.inputs()) {
        ggml_tensor* grad = result.find(input);
        if (grad == nullptr) {
            return {false,
                    fmt::format("{}: no gradient came out for {}", stream_of(c), input->name)};
        }
        outputs.push_back(grad);
    }
    session.allocate_leaves(leaves);
    session.build(outputs);
    session.compute();

    Outcome outcome;
    for (size_t i = 0; i < builder.inputs().size(); ++i) {
        std::vector<double> analytic = values_of(outputs[i + 1]);
        if (c.directional) {
            std::vector<double> along;
            for (const auto& direction : reference.directions[i]) {
                along.push_back(dot(analytic, direction));
            }
            analytic = along;
        }
        const Verdict v = compare(analytic, reference.numeric[i], reference.cotangent_norm,
                                  limits_of(c.tolerance));
        outcome.pass = outcome.pass && v.pass;
        outcome.text += fmt::format("{} scale {} input {}: {}\n", stream_of(c), scale, i, v.text());
    }
    return outcome;
}

const std::vector<Case>& all_cases() {
    static const auto* const cases = [] {
        auto* all = new std::vector<Case>();
        for (auto* family : {elementwise_cases, activation_cases, matmul_cases, norm_cases,
                             softmax_cases, rope_cases, view_cases, row_cases, expert_cases,
                             hyper_connection_cases, recurrent_cases}) {
            const std::vector<Case> some = family();
            all->insert(all->end(), some.begin(), some.end());
        }
        return all;
    }();
    return *cases;
}

}  // namespace voodoo::gradcheck
