#include "kernels/fused/mlp/smem_layout.h"

#include <algorithm>
#include <limits>

namespace dpiframe {
namespace {

constexpr std::int64_t kMaxRows = 4096;  // beyond, a launch a step is as fast

// Whether both blocks have rows to gather, and the weights two places to stream through.
bool fits_in_shared_memory(const ForwardShape& shape, int tile, int num_extras) {
  const std::vector<int> parts = forward_parts(shape.dims);
  const int chunks[] = {forward_x_chunks(parts, 0), forward_x_chunks(parts, 1)};
  const ForwardShared shared = forward_shared(tile, static_cast<int>(shape.columns.size()),
                                              chunks[0] + chunks[1], num_extras);
  return std::min(chunks[0], chunks[1]) > 0 && shared.slots >= 2;
}

}  // namespace

int forward_tile(const std::vector<int>& columns, int num_extras) {
  int most = columns.front() + num_extras;
  for (const int n : columns) most = std::max(most, n);
  for (const int tile : {64, 104, 128})
    if (most <= 4 * tile) return tile;
  return 0;
}

std::vector<int> forward_parts(const std::vector<std::int64_t>& dims) {
  std::vector<int> parts;
  for (const std::int64_t dim : dims) {
    const auto pieces = static_cast<int>(dim / 8);
    for (int piece = 0; piece == 0 || piece < pieces; piece += 2)
      parts.push_back(std::min(2, pieces - piece));
  }
  return parts;
}

int forward_x_chunks(const std::vector<int>& parts, int block) {
  const std::size_t middle = (parts.size() + 1) / 2;
  int chunks = 0;
  for (std::size_t i = block == 0 ? 0 : middle; i < (block == 0 ? middle : parts.size()); ++i)
    chunks += parts[i];
  return (chunks + 1) / 2 * 2;
}

bool forward_lookup_fits(const std::vector<std::int64_t>& dims, std::int64_t num_ids,
                         std::int64_t most_rows) {
  if (num_ids > kForwardMaxIds || most_rows > std::numeric_limits<std::uint32_t>::max())
    return false;
  for (const std::int64_t dim : dims)
    if (dim % 8 != 0 || dim > 16 * kForwardMaxFields) return false;
  return forward_parts(dims).size() <= kForwardMaxFields;
}

bool forward_fits(const ForwardShape& shape) {
  const std::size_t num_levels = shape.columns.size();
  const int num_extras = shape.num_shifts + (shape.has_cross ? 1 : 0) + shape.num_fm;
  if (num_levels < 1 || num_levels > kForwardMaxLevels || shape.num_shifts > kForwardMaxShifts ||
      num_extras > kForwardMaxExtras)
    return false;
  if (!forward_lookup_fits(shape.dims, shape.num_ids, shape.most_rows)) return false;
  const int tile = forward_tile(shape.columns, num_extras);
  return tile > 0 && fits_in_shared_memory(shape, tile, num_extras);
}

std::int64_t forward_max_rows(int compute_capability_major, int multiprocessors) {
  if (compute_capability_major != 9) return 0;
  return std::min(kMaxRows, std::int64_t{multiprocessors} / 2 * kForwardRows);
}

}  // namespace dpiframe
