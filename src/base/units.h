// Numbers with units: sizes as users write them and as we print them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace voodoo {

/// "95MB", "4.2GiB", "1000000", "12.5 kB" -> bytes (fractions rounded down). B, kB/KB, MB, GB, TB
/// are powers of 1000; KiB, MiB, GiB, TiB powers of 1024; no unit means bytes; case of the letters
/// is free except that a lone "b" (bits) is refused. Throws Error(usage).
uint64_t parse_size_bytes(std::string_view text);

/// 1234567890 -> "1.23 GB" (three significant digits, powers of 1000).
std::string format_size(uint64_t size_bytes);

/// 3725 -> "1:02:05", 65 -> "1:05", 3.21 -> "3.2 s".
std::string format_duration(double seconds);

}  // namespace voodoo
