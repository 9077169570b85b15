// What the output file will hold for a layout.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "pipeline/weights.h"
#include "pipeline/workbench.h"
#include "quant/store.h"

namespace voodoo::pipeline {

struct FinalWeights {
    /// By tensor (indices as in Workbench::tensors()): the bytes, mapped from the store.
    std::vector<quant::StoredCandidate> tensors;
    /// Where a tensor's bytes are not the plain encoding of its source: source_hash of the adjusted
    /// F32 rows that they encode. Else empty.
    std::vector<std::string> adjusted_hash;
    /// F32 tensors that differ from the source (norms, biases), by name.
    std::map<std::string, std::vector<float>> tuned;
};

/// Makes `weights` give the engine what the file would hold, decoded. `final` must outlive it.
void use_final(const FinalWeights& final, const Workbench& bench, MixedWeights& weights);

}  // namespace voodoo::pipeline
