// Says before anything is computed whether a model can be differentiated, and if not, what is
// missing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autodiff/vjp.h"
#include "engine/outlets.h"
#include "graph/graph.h"

namespace voodoo::engine {

/// Every op of `graph` that a gradient to a wanted weight would have to pass and that has no rule,
/// with its count and the reason. Empty: the model is fully differentiable. `wants_gradient` empty:
/// all weights.
std::vector<autodiff::Unsupported> audit(
    const graph::Graph& graph,
    const std::function<bool(const std::string& weight)>& wants_gradient = {});

/// "GATED_DELTA_NET x3 (no rule); SSM_CONV x6 (no rule)".
std::string describe(const std::vector<autodiff::Unsupported>& unsupported);

}  // namespace voodoo::engine
