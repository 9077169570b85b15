// The importance matrix: sums of squared activations per column of each weight, as llama-imatrix
// collects them. Reads llama.cpp's GGUF format and its old .dat format, writes the GGUF format.
// Files are not trusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "quant/types.h"

namespace voodoo::quant {

/// One weight's statistics. sums: [n_mat][n_per_row]; counts: tokens seen, one per matrix or a
/// single one for all.
struct ImatrixEntry {
    std::vector<float> sums;
    std::vector<int64_t> counts;
};

/// What an entry gives the quantizers.
struct Importance {
    std::vector<float> values;      ///< [n_mat][n_per_row], as llama-quantize computes them
    std::vector<int64_t> unrouted;  ///< matrices (experts) that saw no token; their values are 1
};

struct Imatrix {
    std::map<std::string, ImatrixEntry> entries;  ///< by tensor name, e.g. "blk.0.ffn_up.weight"
    std::vector<std::string> datasets;
    uint32_t chunk_count = 0;
    uint32_t chunk_size = 0;  ///< tokens; 0 in the old format
    bool is_legacy = false;   ///< read from a .dat file: counts hold one number of calls per entry

    /// Importances of a tensor as llama-quantize computes them (in float: sums / counts; 1 where
    /// the count is zero). Empty values if the tensor has no entry.
    Importance importance(const std::string& tensor_name) const;
};

/// Reads either format. Throws Error(io) if it can't be read and Error(bad_file) if it is
/// malformed, has no entry, lacks the GGUF metadata that llama-quantize demands, or holds
/// non-finite or negative numbers.
Imatrix read_imatrix(const std::filesystem::path& path);

/// Writes the GGUF format atomically; llama-quantize --imatrix and llama-imatrix --in-file accept
/// it. Throws Error(io). Entries of a legacy matrix are written as sums of ncall tokens, which
/// gives the same importances up to rounding. To encode the same bytes as llama-quantize will, use
/// what read_imatrix gives back.
void write_imatrix(const Imatrix& imatrix, const std::filesystem::path& path);

/// Compares the sizes with a model. Throws one Error(bad_file) that lists up to ten mismatches;
/// entries of unknown tensors are ignored, as llama-quantize does. token_embd.weight of another
/// size is ignored (its entry is removed). Returns the names of tensors in `shapes` without an
/// entry.
std::vector<std::string> check_imatrix(Imatrix& imatrix,
                                       const std::map<std::string, MatrixShape>& shapes);

/// SHA-256 over an importance vector, for candidate keys; "none" for an empty one.
std::string importance_hash(const std::vector<float>& values);

}  // namespace voodoo::quant
