// The time of an engine step without decoding candidates, as the benchmarks report it.
#pragma once

#include <cstdint>
#include <span>

#include "engine/executor.h"
#include "pipeline/workbench.h"

namespace voodoo::bench {

/// The better of two steps (forward and backward, after one to warm up) on `tokens`, laid out as
/// n_sequences chunks; the loading of weights is not counted.
double step_seconds(pipeline::Workbench& workbench, engine::Executor& executor,
                    std::span<const int32_t> tokens, int n_sequences);

}  // namespace voodoo::bench
