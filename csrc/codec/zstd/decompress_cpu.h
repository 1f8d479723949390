// zstd on the host, by the code that a GPU runs.
#pragma once

#include "common/bytes.h"

namespace dpiframe {

// Fills `out` to its end from a frame; throws std::invalid_argument where `compressed` does not
// give exactly that, and for what frame.cuh refuses.
void unzstd(std::span<const std::uint8_t> compressed, std::span<std::uint8_t> out);

}  // namespace dpiframe
