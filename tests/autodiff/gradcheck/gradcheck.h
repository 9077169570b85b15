// The gradient check that all vjp rules share: objective sum(out * R) with R random, numeric
// gradient by central differences of ggml's CPU forward summed in double, verdict by relative L2,
// cosine and worst element.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "autodiff/vjp.h"
#include "base/random.h"

namespace voodoo::gradcheck {

using autodiff::Shape;

/// Where an input's values must not lie: a step of the numeric gradient must not cross a kink or
/// pole.
struct Avoid {
    std::vector<double> points;
    double margin = 0.0;
};

/// Builds one case's forward graph. Values come from the named stream, so that equal builders build
/// equal graphs.
class Builder {
public:
    /// exact: build the reference, in which ops that ggml evaluates with rounded operands are
    /// replaced.
    Builder(ggml_context* leaves, ggml_context* nodes, const std::string& stream, double scale,
            bool exact);

    ggml_context* ctx() const { return nodes_; }
    bool exact() const { return exact_; }

    /// A differentiated F32 leaf, normal values times the scale.
    ggml_tensor* input(const Shape& ne, const Avoid& avoid = {});
    /// As input(), with values in [low, high] whatever the scale.
    ggml_tensor* input_between(const Shape& ne, double low, double high);
    /// A differentiated leaf of any type; in the exact graph its dequantized values in F32.
    ggml_tensor* weight(ggml_type type, const Shape& ne);
    /// Leaves that are not differentiated.
    ggml_tensor* constant(const Shape& ne, const std::function<float(int64_t)>& value);
    ggml_tensor* indices_i32(const Shape& ne, const std::function<int64_t(int64_t)>& value);
    ggml_tensor* indices_i64(const Shape& ne, const std::function<int64_t(int64_t)>& value);
    /// A VIEW of contiguous `root` with any strides, as the graph module makes them; all in
    /// elements.
    ggml_tensor* window(ggml_tensor* root, const Shape& ne, const Shape& stride, int64_t offset);

    struct Leaf {
        ggml_tensor* tensor;
        std::vector<char> bytes;
    };
    const std::vector<Leaf>& leaves() const { return all_; }
    const std::vector<ggml_tensor*>& inputs() const { return inputs_; }

private:
    ggml_tensor* leaf(ggml_type type, const Shape& ne, std::vector<char> bytes);
    ggml_tensor* leaf_f32(const Shape& ne, const std::vector<float>& values);

    ggml_context* leaves_;
    ggml_context* nodes_;
    Random random_;
    double scale_;
    bool exact_;
    std::vector<Leaf> all_;
    std::vector<ggml_tensor*> inputs_;
};

/// Rows of the tolerance table in gradcheck.cpp.
enum class Tolerance { smooth, linear, table };

struct Limits {
    double relative_l2;
    double one_minus_cosine;
    double worst;
    /// Largest |h| of the 4th-order stencil.
    double step;
    const char* reason;
};

const Limits& limits_of(Tolerance tolerance);

struct Case {
    std::string rule;
    std::string name;
    std::function<ggml_tensor*(Builder&)> build;
    Tolerance tolerance = Tolerance::smooth;
    /// Numeric gradient from the exact graph (see Builder::exact); its forward must agree to this
    /// relative L2.
    double exact_forward_tolerance = 0.0;
    /// Compare derivatives along random directions instead of every element.
    bool directional = false;
    std::vector<double> scales = {0.3, 1.0, 3.0};

    bool has_exact() const { return exact_forward_tolerance > 0.0; }
};

/// How GoogleTest prints a case.
inline void PrintTo(const Case& c, std::ostream* out) {
    *out << c.rule << "/" << c.name;
}

/// Comparison of one gradient with its reference.
struct Verdict {
    double relative_l2 = 0.0;
    double cosine = 0.0;
    double worst = 0.0;
    double reference_norm = 0.0;
    bool vacuous = false;
    bool pass = false;

    std::string text() const;
};

/// NaN anywhere fails; a reference that is about zero beside `cotangent_norm` is vacuous and fails.
Verdict compare(const std::vector<double>& analytic, const std::vector<double>& numeric,
                double cotangent_norm, const Limits& limits);

/// Numeric reference of one case at one scale: per input the elements' (or directions')
/// derivatives.
struct Reference {
    std::vector<std::vector<double>> numeric;
    /// The directions of directional cases: [input][direction][element].
    std::vector<std::vector<std::vector<float>>> directions;
    double cotangent_norm = 0.0;
    /// Relative L2 between the exact and the plain forward; 0 without an exact graph.
    double forward_difference = 0.0;
};

Reference numeric_reference(const Case& c, double scale);

struct Outcome {
    bool pass = true;
    std::string text;
};

/// Runs backward() for the case and compares with the reference. The tape's rule look-up may be
/// overridden.
Outcome check(const Case& c, double scale, const Reference& reference,
              const autodiff::TapeOptions& options,
              const std::function<const autodiff::Rule*(const ggml_tensor*)>& rule_override = {});

/// A graph with its memory, on the CPU backend.
class Session {
public:
    explicit Session(int n_threads);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    ggml_context* leaf_context() const { return leaves_; }
    ggml_context* node_context() const { return nodes_; }
    /// Allocates the leaves and copies their bytes in.
    void allocate_leaves(const std::vector<Builder::Leaf>& leaves);
    /// Makes the graph that computes `outputs` (whose memory is then not reused).
    void build(const std::vector<ggml_tensor*>& outputs);
    void compute();
    std::vector<ggml_tensor*> nodes() const;

private:
    ggml_context* leaves_;
    ggml_context* nodes_;
    ggml_backend_t backend_;
    ggml_backend_buffer_t leaf_buffer_ = nullptr;
    struct ggml_gallocr* allocator_ = nullptr;
    ggml_cgraph* graph_ = nullptr;
};

/// Elements of an F32 or F16 tensor (any strides) in logical order.
std::vector<double> values_of(const ggml_tensor* t);

/// All cases of all families.
const std::vector<Case>& all_cases();

std::vector<Case> elementwise_cases();
std::vector<Case> activation_cases();
std::vector<Case> matmul_cases();
std::vector<Case> norm_cases();
std::vector<Case> softmax_cases();
std::vector<Case> rope_cases();
std::vector<Case> view_cases();
std::vector<Case> row_cases();
std::vector<Case> expert_cases();
std::vector<Case> hyper_connection_cases();
std::vector<Case> recurrent_cases();

}  // namespace voodoo::gradcheck
