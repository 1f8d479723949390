// What follows the products of the one-kernel forward pass with cross layers: x_{l+1} in the place
// of x_l, h_{l+1} in the place of h_l, the head's dots.
//
// A thread has its sums' own numbers of x0 in registers, for weights come to lie where x0 was.
#pragma once

#include "kernels/fused/cross/weight_pipeline.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <class T>
__device__ float2 to_floats(const std::uint32_t& word) {
  const auto& pair = reinterpret_cast<const PairOf<T>&>(word);
  return {to_float(pair.x), to_float(pair.y)};
}
template <class T>
__device__ std::uint32_t to_word(float low, float high) {
  const auto pair = to_pair<PairOf<T>>(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// A warpgroup's share of its block's columns of a cross layer: chunks of x0.
struct CrossShare {
  int first;  // among all of x0
  int count;

  __device__ CrossShare(const ForwardArguments& a, int rank, int group) {
    const int begin = rank == 0 ? 0 : a.chunks[0];
    const int all = a.chunks[rank] - (a.zero_chunk[rank] >= 0 ? 1 : 0);
    const int before = group == 0 ? 0 : (all + 1) / 2;
    first = begin + before;
    count = group == 0 ? (all + 1) / 2 : all - before;
  }
  // Where a thread's first number lies, from the start of x0 or x_l.
  __device__ int offset(const ForwardThread& thread) const {
    return first * kChunkStride + thread.warp * 256 + thread.lane * 4;
  }
};

// The thread's numbers at `place`: a word for each chunk and row.
template <int kTile>
__device__ void load_own(std::uint32_t place, int count, std::uint32_t (&words)[kTile / 4]) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      words[2 * j + r] = j < count ? load_word(place + j * kChunkStride + r * 128) : 0;
}

// Biases and the like: a pair for each chunk, all loaded before any is used.
template <int kTile>
__device__ void load_pairs(std::uint32_t place, float2 (&pairs)[kTile / 8]) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) pairs[j] = load_pair(place + j * 32);
}

// The level's output into the next level's activations, ReLU applied.
template <class T, int kTile>
__device__ void store_deep(const float (&sums)[kTile / 2], std::uint32_t bias,
                           std::uint32_t target) {
  float2 adds[kTile / 8];
  load_pairs<kTile>(bias, adds);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      store_word(target + j * kChunkStride + r * 128,
                 to_word<T>(at_least(sums[4 * j + 2 * r] + adds[j].x, 0.0f),
                            at_least(sums[4 * j + 2 * r + 1] + adds[j].y, 0.0f)));
}

// The thread's part of the head's dot with the last h_l, for its two rows.
template <int kTile>
__device__ void add_deep_head(const float (&sums)[kTile / 2], std::uint32_t bias,
                              std::uint32_t head, int width, float (&dots)[2]) {
  const int left = width - ForwardThread().own();
  float2 adds[kTile / 8];
  float2 weights[kTile / 8];
  load_pairs<kTile>(bias, adds);
  load_pairs<kTile>(head, weights);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = at_least(sums[4 * j + 2 * r] + adds[j].x, 0.0f);
      const float y = at_least(sums[4 * j + 2 * r + 1] + adds[j].y, 0.0f);
      if (8 * j < left) dots[r] = fmaf(x, weights[j].x, dots[r]);
      if (8 * j + 1 < left) dots[r] = fmaf(y, weights[j].y, dots[r]);
    }
}

// What a chunk's numbers of x_{l+1} are made of but for the sums and x0. As x_{l+1} is
// x_l + x0 * (W_l x_l + b_l), it is x0 + x0 * (all layers' products so far + all their biases).
struct CrossChunk {
  float2 add;
  float2 head;  // where there is one
};

// Calls take(j, row, x0 * (sum + bias) + x0, head's pair) for each chunk and row; head 0: none. A
// chunk's numbers are loaded two chunks before they are used.
template <class T, int kTile, bool kHasHead, class Take>
__device__ void cross_each(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                           std::uint32_t bias, std::uint32_t head, int count, const Take& take) {
  CrossChunk chunks[3];
  const auto load = [&](int j) {
    CrossChunk& chunk = chunks[j % 3];
    chunk.add = load_pair(bias + j * 32);
    if constexpr (kHasHead) chunk.head = load_pair(head + j * 32);
  };
  load(0);
  load(1);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    if (j + 2 < kTile / 8) load(j + 2);
    const CrossChunk& chunk = chunks[j % 3];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t word = x0[2 * j + r];
      asm volatile("" : "+r"(word));  // else float numbers are made for all levels at once
      const float2 by = to_floats<T>(word);
      const float2 x{fmaf(by.x, sums[4 * j + 2 * r] + chunk.add.x, by.x),
                     fmaf(by.y, sums[4 * j + 2 * r + 1] + chunk.add.y, by.y)};
      if (j < count) take(j, r, x, chunk.head);
    }
  }
}

// x_{l+1} in the place of x_l, at `place`.
template <class T, int kTile>
__device__ void store_cross(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                            std::uint32_t bias, std::uint32_t place, int count) {
  cross_each<T, kTile, false>(
      sums, x0, bias, 0, count, [&](int j, int r, const float2& x, const float2&) {
        store_word(place + j * kChunkStride + r * 128, to_word<T>(x.x, x.y));
      });
}

// The thread's part of the head's dot with the last x_l, for its two rows.
template <class T, int kTile>
__device__ void add_cross_head(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                               std::uint32_t bias, std::uint32_t head, int count,
                               float (&dots)[2]) {
  cross_each<T, kTile, true>(sums, x0, bias, head, count,
                             [&](int, int r, const float2& x, const float2& weight) {
                               dots[r] = fmaf(x.y, weight.y, fmaf(x.x, weight.x, dots[r]));
                             });
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
