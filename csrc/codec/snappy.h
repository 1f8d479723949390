// Snappy's raw format: google/snappy, format_description.txt.
#pragma once

#include "common/bytes.h"

namespace dpiframe {

// Fills `out` to its end; throws std::invalid_argument where `compressed` does not give exactly
// that.
void decompress_snappy(Bytes compressed, std::span<std::uint8_t> out);

}  // namespace dpiframe
