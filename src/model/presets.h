// What llama-quantize would do: its presets, the type that a preset gives each tensor, the size of
// the file it writes, and which tensors it quantizes at all. Nothing is quantized here.
#pragma once

#include "model/model.h"

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace voodoo::model {

/// A preset of llama-quantize.
struct Preset {
    std::string_view name;
    /// Value of general.file_type (llama_ftype).
    uint32_t ftype;
    /// Rough bits per weight on a large dense model; orders the table.
    double nominal_bpw;
    /// llama-quantize refuses it without an importance matrix for some tensors.
    bool needs_imatrix;
};

/// All presets, smallest first; every one of llama-quantize's but COPY and its aliases.
std::span<const Preset> presets();

/// Finds by name, case ignored; aliases Q3_K, Q4_K, Q5_K mean their _M. nullptr if there is none.
const Preset* find_preset(std::string_view name);
/// Throws Error(usage) that lists the names.
const Preset& preset(std::string_view name);

struct TensorType {
    std::string name;
    ggml_type type;

    bool operator==(const TensorType&) const = default;
};

/// The layout that a preset gives a model.
struct PresetLayout {
    /// In the order in which llama-quantize writes the tensors.
    std::vector<TensorType> types;
    /// Size of the file that llama-quantize writes, in bytes, as one file. With an imatrix it also
    /// records where that came from (quantize.imatrix.*), about 250 bytes more, depending on its
    /// path.
    uint64_t file_size_bytes = 0;
};

/// Types by a dry run of llama_model_quantize. `with_imatrix`: as with `--imatrix` (some presets
/// choose other types then). Throws Error(usage) for an unknown preset, Error(bad_file) or
/// Error(unsupported_model) if llama.cpp can't do it for this model, Error(io). Any number of
/// threads.
PresetLayout preset_layout(const std::filesystem::path& model_path, std::string_view preset_name,
                           bool with_imatrix);

/// Just the types of preset_layout.
std::vector<TensorType> preset_types(const std::filesystem::path& model_path,
                                     std::string_view preset_name, bool with_imatrix);

/// A tensor as its file describes it.
struct TensorShape {
    std::string name;
    std::array<int64_t, 4> ne;
};

/// llama.cpp's own rule whether a tensor may be quantized, for each of `tensors`. Names that don't
/// end in "weight" are never quantized (llama.cpp's check wraps for short ones). `model` may be
/// loaded vocab_only.
std::vector<bool> allows_quantization(const Model& model, std::span<const TensorShape> tensors);

/// Value of general.file_type for a file most of whose weights have `type`: what llama.cpp guesses
/// itself when the key is missing. Throws Error(usage) for types that no file type stands for.
uint32_t ftype_for_type(ggml_type type);

}  // namespace voodoo::model
