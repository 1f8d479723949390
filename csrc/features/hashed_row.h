// Rows of a field's table: 0 for missing values, 1 for unseen ones, and those of values.
#pragma once

#include <cstdint>

#include "common/fast_modulo.h"

namespace dpiframe {

inline constexpr std::int32_t kMissingRow = 0;
inline constexpr std::int32_t kUnseenRow = 1;
inline constexpr std::int32_t kFirstValueRow = 2;

// That of a value by its hash.
DPIF_HOST_DEVICE std::int32_t row_of_hash(std::uint64_t hash, const FastModulo& modulo) {
  return static_cast<std::int32_t>(modulo(hash)) + kFirstValueRow;
}

}  // namespace dpiframe
