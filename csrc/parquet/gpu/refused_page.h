// The word in which kernels tell that a page of a unit is refused: which one, and what failed.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace dpiframe::pages {

enum class Failed : unsigned { kDecompress, kDecode };

// 0 stands for no page.
DPIF_HOST_DEVICE unsigned refused_page(std::int32_t page, Failed what) {
  return 1 + 2 * static_cast<unsigned>(page) + static_cast<unsigned>(what);
}
DPIF_HOST_DEVICE std::int32_t page_of_refused(unsigned word) {
  return static_cast<std::int32_t>((word - 1) / 2);
}
DPIF_HOST_DEVICE Failed what_of_refused(unsigned word) {
  return static_cast<Failed>((word - 1) % 2);
}

}  // namespace dpiframe::pages
