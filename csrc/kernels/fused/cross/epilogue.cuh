// The epilogues of the fused cross kernel: x_{l+1} overwrites x_l, h_{l+1} overwrites h_l; the
// head's dots.
//
// A thread keeps the numbers of x_0 that belong to its sums in registers, because weights overwrite
// x_0 in shared memory.
#pragma once

#include "kernels/fused/mlp/smem_layout.h"
#include "kernels/fused/relu_epilogue.cuh"

namespace dpiframe {

// A warpgroup's part of its CTA's columns of a cross layer: chunks of x_0.
struct CrossChunks {
  int first;  // among all of x_0
  int count;

  __device__ CrossChunks(const FusedMlpParams& a, int rank, int warpgroup) {
    const int begin = rank == 0 ? 0 : a.x_chunks[0];
    const int all = a.x_chunks[rank] - (a.zero_chunk[rank] >= 0 ? 1 : 0);
    const int before = warpgroup == 0 ? 0 : (all + 1) / 2;
    first = begin + before;
    count = warpgroup == 0 ? (all + 1) / 2 : all - before;
  }
  // From the start of x_0 or x_l to a thread's first number.
  __device__ int offset(const ConsumerThread& thread) const {
    return first * kChunkStride + thread.warp * 256 + thread.lane * 4;
  }
};

// The thread's numbers at `address`: a pair of each chunk and sample.
template <int kTile>
__device__ void load_pairs(std::uint32_t address, int count, std::uint32_t (&pairs)[kTile / 4]) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      pairs[2 * j + r] = j < count ? ld_shared_u32(address + j * kChunkStride + r * 128) : 0;
}

// Calls take(j, r, x_0 * (sum + bias) + x_0, head's pair) for each chunk j and sample r; head 0:
// none. As x_{l+1} is x_l + x_0 * (W_l x_l + b_l), it is x_0 + x_0 * (all layers' products so far +
// all their biases). Biases are loaded two chunks before they are used.
template <class T, int kTile, bool kHasHead, class Take>
__device__ void for_each_cross(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                               std::uint32_t bias, std::uint32_t head, int count,
                               const Take& take) {
  struct Chunk {
    float2 add;
    float2 head;  // where there is one
  } chunks[3];
  const auto load = [&](int j) {
    Chunk& chunk = chunks[j % 3];
    chunk.add = ld_shared_f32x2(bias + j * 32);
    if constexpr (kHasHead) chunk.head = ld_shared_f32x2(head + j * 32);
  };
  load(0);
  load(1);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    if (j + 2 < kTile / 8) load(j + 2);
    const Chunk& chunk = chunks[j % 3];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Else float numbers are made for all layers at once.
      const std::uint32_t pair = keep_in_register(x0[2 * j + r]);
      const float2 by = to_floats<T>(pair);
      const float2 x{fmaf(by.x, sums[4 * j + 2 * r] + chunk.add.x, by.x),
                     fmaf(by.y, sums[4 * j + 2 * r + 1] + chunk.add.y, by.y)};
      if (j < count) take(j, r, x, chunk.head);
    }
  }
}

// x_{l+1} where x_l was, at `target`.
template <class T, int kTile>
__device__ void store_cross(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                            std::uint32_t bias, std::uint32_t target, int count) {
  for_each_cross<T, kTile, false>(
      sums, x0, bias, 0, count, [&](int j, int r, const float2& x, const float2&) {
        st_shared_u32(target + j * kChunkStride + r * 128, to_pair_bits<T>(x.x, x.y));
      });
}

// The thread's part of the head's dot with the last x_l, for its two samples.
template <class T, int kTile>
__device__ void add_cross_head(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                               std::uint32_t bias, std::uint32_t head, int count,
                               float (&dots)[2]) {
  for_each_cross<T, kTile, true>(sums, x0, bias, head, count,
                                 [&](int, int r, const float2& x, const float2& weight) {
                                   dots[r] = fmaf(x.y, weight.y, fmaf(x.x, weight.x, dots[r]));
                                 });
}

}  // namespace dpiframe
