#pragma once

#include <cstdint>
#include <span>

namespace dpiframe {

using Bytes = std::span<const std::uint8_t>;

}  // namespace dpiframe
