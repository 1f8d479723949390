// Boxes of 64 columns of two bytes, zeros outside the matrix.
#pragma once

namespace dpiframe {

struct HostMap {  // in a CUtensorMap
  const unsigned char* data;
  long rows, columns, stride, box_rows;
};
inline void tma_prefetch_map(const CUtensorMap*) {}
inline void tma_load_2d(std::uint32_t target, const CUtensorMap* map, int column, int row,
                        std::uint32_t barrier) {
  HostMap own;
  std::memcpy(&own, map, sizeof(own));
  for (long r = 0; r < own.box_rows; ++r)
    for (long c = 0; c < 64; ++c) {
      const bool there = row + r < own.rows && column + c < own.columns;
      auto* to = shared + swizzled(target + r * 128 + c * 2);
      std::memset(to, 0, 2);
      if (there) std::memcpy(to, own.data + ((row + r) * own.stride + column + c) * 2, 2);
    }
  change_barrier(barrier, [&](HostBarrier& b) { b.bytes -= own.box_rows * 128; });
}

}  // namespace dpiframe
