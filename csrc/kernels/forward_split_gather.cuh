// The lookup of the one-kernel forward pass for float32: by the threads that multiply, each its own
// numbers of x0, 16 bytes of a row at a time.
#pragma once

#include "kernels/forward_split_levels.cuh"
#include "kernels/run_inputs.h"

namespace dpiframe {

#ifdef DPIF_HOPPER

__device__ inline std::int64_t id_at(const RunInputs& inputs, int ids_row, std::int64_t b) {
  const std::int64_t place = ids_row * inputs.ids_stride + b;
  return inputs.ids_are_int64 != 0
             ? __ldg(static_cast<const long long*>(inputs.ids) + place)
             : std::int64_t{__ldg(static_cast<const int*>(inputs.ids) + place)};
}

// The row of a table for an id, or what stands in for it; -1: none.
__device__ inline std::int64_t row_for(const RunInputs& inputs, std::int64_t id, std::uint32_t rows,
                                       std::int64_t oov_row) {
  if (static_cast<std::uint64_t>(id) < rows) return id;
  return inputs.use_oov != 0 ? oov_row : -1;
}

constexpr int kSplitAtOnce = 5;  // strips whose rows are on their way together

// A tile's numbers of x0 of the warpgroup's quarter, `count` strips from `first` on, to `values` as
// sums, their largest magnitudes to `tops`, and to `own` for later. Rows behind the batch are
// zeros.
template <int kTile>
__device__ void gather_x0(const RunInputs& inputs, const ForwardSplitPart* parts, int tile,
                          int first, int count, float4* own, float (&values)[kTile / 2],
                          float (&tops)[2]) {
  constexpr int kStrips = kTile / kSplitStrip;
  const ForwardThread thread;
  const std::int64_t b = std::int64_t{tile} * kForwardRows + thread.first_row();
  const int4* mine = reinterpret_cast<const int4*>(parts + first * 4 + thread.lane % 4);
  constexpr int kPartWords = 4 * sizeof(ForwardSplitPart) / 16;  // of a strip
#pragma unroll
  for (int begin = 0; begin < kStrips; begin += kSplitAtOnce) {
    int4 tables[kSplitAtOnce];  // table, rows, row_bytes
    std::int64_t found[kSplitAtOnce][2];
    float4 fours[kSplitAtOnce][2] = {};
#pragma unroll
    for (int u = 0; u < kSplitAtOnce; ++u) {
      const int i = begin + u;
      if (i >= kStrips) break;
      tables[u] = __ldg(mine + min(i, count - 1) * kPartWords);
      const int4 rest = __ldg(mine + min(i, count - 1) * kPartWords + 1);  // oov_row, ids_row
      const std::int64_t oov_row = static_cast<std::int64_t>(
          static_cast<std::uint64_t>(static_cast<unsigned>(rest.y)) << 32 |
          static_cast<unsigned>(rest.x));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        found[u][r] = b + 8 * r < inputs.batch && i < count
                          ? row_for(inputs, id_at(inputs, rest.z, b + 8 * r),
                                    static_cast<unsigned>(tables[u].z), oov_row)
                          : -1;
    }
#pragma unroll
    for (int u = 0; u < kSplitAtOnce; ++u) {
      if (begin + u >= kStrips) break;
      const char* table = reinterpret_cast<const char*>(
          static_cast<std::uint64_t>(static_cast<unsigned>(tables[u].y)) << 32 |
          static_cast<unsigned>(tables[u].x));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (found[u][r] >= 0)
          fours[u][r] = __ldg(reinterpret_cast<const float4*>(
              table + found[u][r] * static_cast<unsigned>(tables[u].w)));
    }
#pragma unroll
    for (int u = 0; u < kSplitAtOnce; ++u) {
      const int i = begin + u;
      if (i >= kStrips) break;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        __stcg(own + (2 * i + r) * 128, fours[u][r]);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float value = in_four(fours[u][r], k);
          values[8 * i + split_sum(r, k)] = value;
          tops[r] = fmaxf(tops[r], fabsf(value));
        }
      }
    }
  }
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
