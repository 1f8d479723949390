#include "kernels/forward_layout.h"

#include <algorithm>

namespace dpiframe {

int forward_tile(const std::vector<int>& columns, int num_extras) {
  int most = columns.front() + num_extras;
  for (const int n : columns) most = std::max(most, n);
  for (const int tile : {64, 104, 128})
    if (most <= 4 * tile) return tile;
  return 0;
}

}  // namespace dpiframe
