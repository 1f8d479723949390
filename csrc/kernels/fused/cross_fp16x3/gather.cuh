// The lookup of the one-kernel forward pass for float32: by the threads that multiply, each its own
// numbers of x0, 16 bytes of a row at a time.
#pragma once

#include "kernels/batch_memory.h"
#include "kernels/fused/cross_fp16x3/epilogue.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

__device__ inline std::int64_t id_at(const BatchMemory& inputs, int ids_row, std::int64_t b) {
  const std::int64_t place = ids_row * inputs.ids_stride + b;
  return inputs.ids_are_int64 != 0
             ? __ldg(static_cast<const long long*>(inputs.ids) + place)
             : std::int64_t{__ldg(static_cast<const int*>(inputs.ids) + place)};
}

// The row of a table for an id, or what stands in for it; -1: none.
__device__ inline std::int64_t row_for(const BatchMemory& inputs, std::int64_t id, std::uint32_t rows,
                                       std::int64_t oov_row) {
  if (static_cast<std::uint64_t>(id) < rows) return id;
  return inputs.use_oov != 0 ? oov_row : -1;
}

// Loads that stay in the order in which they are written, so that they are on their way together.
__device__ inline int4 load_part(const int4* place) {
  int4 part;
  asm volatile("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(part.x), "=r"(part.y), "=r"(part.z), "=r"(part.w)
               : "l"(place));
  return part;
}
// Zeros unless `is_good`.
__device__ inline float4 load_row(const char* place, bool is_good) {
  float4 row;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.s32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
      : "=&f"(row.x), "=&f"(row.y), "=&f"(row.z), "=&f"(row.w)
      : "l"(place), "r"(static_cast<int>(is_good)));
  return row;
}
__device__ inline std::uint32_t load_id_word(const char* place) {
  std::uint32_t word;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(place));
  return word;
}
__device__ inline uint2 load_id(const char* place) {
  uint2 id;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(id.x), "=r"(id.y) : "l"(place));
  return id;
}

__device__ inline std::uint64_t joined(int low, int high) {
  return static_cast<std::uint64_t>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low);
}

// A thread's part of a warpgroup's quarter of x0: `count` strips, four columns each of two rows.
template <int kTile>
struct SplitGather {
  static constexpr int kStrips = kTile / kSplitStrip;
  using Fours = float4[kStrips][2];

  const BatchMemory& inputs;
  const ForwardSplitPart* parts;  // the thread's of the quarter's first strip
  const std::uint16_t* ids_rows;  // of these
  int count;
  std::int64_t b;  // the first of the rows

  // Of strip i; there are some behind the last of the last quarter, too.
  __device__ const ForwardSplitPart& part(int i) const { return parts[i * 4]; }
  __device__ bool is_there(int i, int r) const { return b + 8 * r < inputs.batch && i < count; }

  // The strips' ids of both rows; of the batch's last in place of those behind it.
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
          ids[i][r] = load_id(row + rows[r]);
        else
          ids[i][r] = {load_id_word(row + rows[r]), 0};
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
      tables[i] = load_part(reinterpret_cast<const int4*>(&part(i)));
    const bool is_int64 = inputs.ids_are_int64 != 0;
    unsigned bad = 0;
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t high = ids[i][r].y | (is_int64 ? 0 : ids[i][r].x >> 31);
        const bool is_row = high == 0 && ids[i][r].x < static_cast<std::uint32_t>(tables[i].z);
        const auto* table = reinterpret_cast<const char*>(joined(tables[i].x, tables[i].y));
        fours[i][r] =
            load_row(table + std::uint64_t{ids[i][r].x} * static_cast<std::uint32_t>(tables[i].w),
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
        const std::int64_t row = part(i).oov_row;
        if ((bad >> (2 * i + r) & 1) != 0)
          fours[i][r] =
              load_row(part(i).table + row * part(i).row_bytes, row >= 0 && is_there(i, r));
      }
  }
};

// A tile's numbers of x0 of the warpgroup's quarter, `count` strips from `first` on, to `values` as
// sums, their largest magnitudes to `tops`. Rows behind the batch are zeros.
template <int kTile>
__device__ void gather_x0(const BatchMemory& inputs, const ForwardSplitArguments& a, int tile,
                          int first, int count, float (&values)[kTile / 2], float (&tops)[2]) {
  const ForwardThread thread;
  const int part = static_cast<int>(kept(first * 4 + thread.lane % 4));  // for this tile alone
  constexpr int kStrips = SplitGather<kTile>::kStrips;
  float4 fours[kStrips][2];
  SplitGather<kTile>{inputs, a.parts + part, a.ids_rows + part, count,
                     std::int64_t{tile} * kForwardRows + thread.first_row()}
      .load(fours);
#pragma unroll
  for (int i = 0; i < kStrips; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float value = in_four(fours[i][r], k);
        values[8 * i + split_sum(r, k)] = value;
        tops[r] = fmaxf(tops[r], fabsf(value));
      }
}

// They are kept in the block's scratch.
template <int kTile>
__device__ void keep_x0(const float (&values)[kTile / 2], char* scratch) {
  auto* own = reinterpret_cast<float4*>(scratch) + threadIdx.x / 128 * 2 * 128 + threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      __stcg(own + (4 * i + r) * 128,
             float4{values[8 * i + split_sum(r, 0)], values[8 * i + split_sum(r, 1)],
                    values[8 * i + split_sum(r, 2)], values[8 * i + split_sum(r, 3)]});
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
