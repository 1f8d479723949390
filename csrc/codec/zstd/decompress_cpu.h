// zstd on the host, by the code that a GPU runs.
#pragma once

#include <cstdint>
#include <span>

namespace dpiframe {

// Fills `out` to its end from a frame; throws std::invalid_argument where `packed` does not give
// exactly that, and for what zstd_frame.h refuses.
void unzstd(std::span<const std::uint8_t> packed, std::span<std::uint8_t> out);

}  // namespace dpiframe
