// The old .dat format of llama-imatrix; internal to imatrix.cpp.
#pragma once

#include <string>
#include <string_view>

#include "quant/imatrix.h"

namespace voodoo::quant {

/// Parses the bytes of a .dat file: n_entries x { name, ncall, n values }, chunk count, dataset.
/// `where` names the file in errors. Throws Error(bad_file).
Imatrix parse_legacy_imatrix(std::string_view bytes, const std::string& where);

}  // namespace voodoo::quant
