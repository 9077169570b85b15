// Recorded graph -> SSA graph.
#pragma once

#include "graph/graph.h"

namespace voodoo::graph {

/// Rewrites a trace into a pure program:
/// * each write into existing memory (SET_ROWS, CPY into a view, in-place ops) makes a new version
/// of the
///   written storage, and later reads see the newest version;
/// * VIEW, RESHAPE, PERMUTE and TRANSPOSE become windows on the value that owns the memory;
/// * the leaf that holds the batch's token ids becomes ValueKind::tokens;
/// * what the logits do not depend on is dropped.
/// Throws Error(unsupported_model) where a write can't be expressed, naming the tensor.
Graph functionalize(const Trace& trace);

}  // namespace voodoo::graph
