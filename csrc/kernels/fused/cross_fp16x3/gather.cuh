// The gather of the fused FP16x3 cross kernel: by the consumer threads, each its own numbers of
// x_0, 16 bytes of an embedding row at a time.
#pragma once

#include "kernels/batch_memory.h"
#include "kernels/fused/cross_fp16x3/epilogue.cuh"
#include "ptx/global_memory.cuh"

namespace dpiframe {

// The embedding row of an id, or what stands in for it; -1: none.
__device__ inline std::int64_t row_for(const BatchMemory& inputs, std::int64_t id,
                                       std::uint32_t rows, std::int64_t oov_row) {
  if (static_cast<std::uint64_t>(id) < rows) return id;
  return inputs.use_oov != 0 ? oov_row : -1;
}

__device__ inline std::uint64_t joined(int low, int high) {
  return static_cast<std::uint64_t>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low);
}

// A thread's part of a warpgroup's quarter of x_0: `count` strips, four columns each of two
// samples. Its loads are volatile, so that they stay in the order in which they are written and are
// on their way together.
template <int kTile>
struct Fp16x3Gather {
  static constexpr int kStrips = kTile / kStripColumns;
  using Fours = float4[kStrips][2];

  const BatchMemory& inputs;
  const Fp16x3ColumnGroup* groups;  // the thread's of the quarter's first strip
  const std::uint16_t* ids_rows;    // of these
  int count;
  std::int64_t b;  // the first of the samples

  // Of strip i; there are some behind the last of the last quarter, too.
  __device__ const Fp16x3ColumnGroup& group(int i) const { return groups[i * 4]; }
  __device__ bool is_there(int i, int r) const { return b + 8 * r < inputs.batch && i < count; }

  // The strips' ids of both samples; of the batch's last in place of those behind it.
  __device__ void load_ids(uint2 (&ids)[kStrips][2]) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const int shift = is_int64 ? 3 : 2;
    const auto* base = static_cast<const char*>(inputs.ids);
    const std::int64_t rows[] = {min(b, inputs.batch - 1) << shift, min(b + 8, inputs.batch - 1)
                                                                        << shift};
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      const char* row = base + ((ids_rows[i * 4] * inputs.ids_stride) << shift);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (is_int64)
          ids[i][r] = ld_global_nc_v2(row + rows[r]);
        else
          ids[i][r] = {ld_global_nc_u32(row + rows[r]), 0};
      }
    }
  }

  // Zeros behind the batch and beyond the strips.
  __device__ void load(Fours& fours) const {
    int4 tables[kStrips];  // table, rows, row_bytes
    uint2 ids[kStrips][2];
    load_ids(ids);
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
      tables[i] = ld_global_nc_v4(reinterpret_cast<const int4*>(&group(i)));
    const bool is_int64 = inputs.ids_are_int64 != 0;
    unsigned bad = 0;
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t high = ids[i][r].y | (is_int64 ? 0 : ids[i][r].x >> 31);
        const bool is_row = high == 0 && ids[i][r].x < static_cast<std::uint32_t>(tables[i].z);
        const auto* table = reinterpret_cast<const char*>(joined(tables[i].x, tables[i].y));
        fours[i][r] = ld_global_nc_f32x4_if(
            table + std::uint64_t{ids[i][r].x} * static_cast<std::uint32_t>(tables[i].w),
            is_there(i, r) && is_row);
        bad |= (is_row || tables[i].z == 0 ? 0u : 1u) << (2 * i + r);  // no rows: nothing is there
      }
    if (inputs.use_oov != 0 && bad != 0) [[unlikely]]
      replace(bad, fours);
  }
  __device__ void replace(unsigned bad, Fours& fours) const {
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int64_t row = group(i).oov_row;
        if ((bad >> (2 * i + r) & 1) != 0)
          fours[i][r] = ld_global_nc_f32x4_if(group(i).table + row * group(i).row_bytes,
                                              row >= 0 && is_there(i, r));
      }
  }
};

// A tile's numbers of x_0 of the warpgroup's quarter, `count` strips from `first` on, to `values`
// as sums, their largest magnitudes to `tops`. Samples behind the batch are zeros.
template <int kTile>
__device__ void gather_x0(const BatchMemory& inputs, const FusedCrossFp16x3Params& a, int tile,
                          int first, int count, float (&values)[kTile / 2], float (&tops)[2]) {
  const ConsumerThread thread;
  const int group =
      static_cast<int>(keep_in_register(first * 4 + thread.lane % 4));  // for this tile alone
  constexpr int kStrips = Fp16x3Gather<kTile>::kStrips;
  float4 fours[kStrips][2];
  Fp16x3Gather<kTile>{inputs, a.groups + group, a.ids_rows + group, count,
                      std::int64_t{tile} * kTileSamples + thread.first_sample()}
      .load(fours);
#pragma unroll
  for (int i = 0; i < kStrips; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float value = in_four(fours[i][r], k);
        values[8 * i + sum_index(r, k)] = value;
        tops[r] = fmaxf(tops[r], fabsf(value));
      }
}

// Keeps them in the CTA's scratch.
template <int kTile>
__device__ void keep_x0(const float (&values)[kTile / 2], char* scratch) {
  auto* own = reinterpret_cast<float4*>(scratch) + threadIdx.x / 128 * 2 * 128 + threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < kTile / kStripColumns; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      __stcg(own + (4 * i + r) * 128,
             float4{values[8 * i + sum_index(r, 0)], values[8 * i + sum_index(r, 1)],
                    values[8 * i + sum_index(r, 2)], values[8 * i + sum_index(r, 3)]});
}

}  // namespace dpiframe
