// What the output file will hold for a layout.
#pragma once

#include <map>
#include <string>
#include <vector>

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

}  // namespace voodoo::pipeline
