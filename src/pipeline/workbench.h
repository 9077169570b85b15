// What every stage needs of a model: its file, its tensors, llama.cpp's view of it, threads and
// encoder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gguf/layout.h"
#include "gguf/reader.h"
#include "graph/graph.h"
#include "model/model.h"
#include "pipeline/settings.h"
#include "quant/codec.h"
#include "quant/imatrix.h"

namespace voodoo::pipeline {

/// A tensor that the search may quantize.
struct Tensor {
    std::string name;
    const gguf::TensorInfo* info = nullptr;
    quant::MatrixShape shape;
    bool is_embedding_or_head = false;
    std::string pinned;  ///< type name, or empty
};

/// What the file's metadata says about how its tensors were made.
struct EncodingFacts {
    bool feedback = false;  ///< some tensors encode an adjusted source
    bool tuned = false;     ///< some F32 tensors differ from the source
};

class Workbench {
public:
    /// Validates the file, then lets llama.cpp load it. Throws Error(bad_file),
    /// Error(unsupported_model), Error(usage) for pins that name no tensor or an illegal type and
    /// for sources below 8 bits.
    Workbench(const Settings& settings, Observer& observer);

    const Settings& settings() const { return settings_; }
    const gguf::File& file() const { return file_; }
    const model::Model& model() const { return model_; }
    const quant::Encoder& encoder() const { return encoder_; }
    ThreadPool& pool() { return pool_; }
    const std::vector<Tensor>& tensors() const { return tensors_; }
    /// False for tensors that no matmul uses, so that a run's own importance matrix has no entry
    /// for them: embeddings that are looked up only. True for all others, and for all if the user
    /// brings an importance matrix.
    bool gets_importance(const Tensor& tensor) const;
    /// Index into tensors(), or -1.
    int find_tensor(const std::string& name) const;
    std::map<std::string, quant::MatrixShape> shapes() const;
    int64_t n_weights() const { return n_weights_; }

    /// SHA-256 over metadata-independent facts: names, shapes, types and sizes of tensors and the
    /// file's size and time.
    const std::string& fingerprint() const { return fingerprint_; }

    /// Captured and made SSA for n_sequences chunks of chunk_len tokens. Throws
    /// Error(unsupported_op) with the audit's list if it can't be differentiated.
    graph::Graph capture(int n_sequences, int32_t chunk_len, bool need_gradients) const;

    /// Engine memory bound in bytes: settings, or a share of what is available.
    uint64_t memory_bytes() const;

    /// Metadata of the output and its exact size for a choice of types (by tensor; others as in the
    /// source).
    gguf::Metadata output_metadata(const std::map<std::string, ggml_type>& types,
                                   const std::string& plan_hash, const std::string& method,
                                   const EncodingFacts& facts = {}) const;
    std::vector<gguf::PlannedTensor> output_tensors(
        const std::map<std::string, ggml_type>& types) const;
    uint64_t output_size(const std::map<std::string, ggml_type>& types) const;
    /// Bytes of the output that do not depend on the choice: header and all tensors but tensors().
    uint64_t fixed_bytes() const;
    /// Bytes of a tensor in the output under a type, padding included.
    uint64_t padded_bytes(const Tensor& tensor, ggml_type type) const;
    /// Target size in bytes from the settings. Throws Error(usage) if there is none.
    uint64_t target_bytes() const;

private:
    void check_source() const;
    void find_tensors();
    void apply_pins();
    std::optional<uint64_t> find_target() const;

    Settings settings_;
    gguf::File file_;
    model::Model model_;
    quant::Encoder encoder_;
    ThreadPool pool_;
    std::vector<Tensor> tensors_;
    int64_t n_weights_ = 0;
    std::optional<uint64_t> target_bytes_;
    std::string fingerprint_;
};

}  // namespace voodoo::pipeline
