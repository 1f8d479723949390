// What follows the products of the one-kernel forward pass with cross layers: x_{l+1} in the place
// of x_l, h_{l+1} in the place of h_l, the head's dots.
//
// A thread has its sums' own numbers of x0 in registers, for weights come to lie where x0 was.
#pragma once

#include "kernels/forward_cross_stream.cuh"

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

constexpr int kChunksAtOnce = 4;  // are loaded before any is used

// Calls take(j, row, xl, x0 * (sum + bias) + xl) for each chunk and row; xl null: x0.
template <class T, int kTile, class Take>
__device__ void cross_each(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                           std::uint32_t bias, std::uint32_t xl, int count, const Take& take) {
#pragma unroll
  for (int first = 0; first < kTile / 8; first += kChunksAtOnce) {
    float2 adds[kChunksAtOnce];
    std::uint32_t words[2 * kChunksAtOnce];
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; ++i) {
      const int j = first + i;
      if (j >= kTile / 8) break;
      adds[i] = load_pair(bias + j * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        words[2 * i + r] =
            xl != 0 && j < count ? load_word(xl + j * kChunkStride + r * 128) : x0[2 * j + r];
    }
#pragma unroll
    for (int i = 0; i < 2 * kChunksAtOnce; ++i) {
      const int j = first + i / 2;
      const int r = i % 2;
      if (j >= kTile / 8) break;
      const float2 by = to_floats<T>(x0[2 * j + r]);
      const float2 add = to_floats<T>(words[i]);
      if (j < count)
        take(j, r,
             float2{fmaf(by.x, sums[4 * j + 2 * r] + adds[i / 2].x, add.x),
                    fmaf(by.y, sums[4 * j + 2 * r + 1] + adds[i / 2].y, add.y)});
    }
  }
}

// x_{l+1} in the place of x_l, at `place`; xl 0: x_l is x0.
template <class T, int kTile>
__device__ void store_cross(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                            std::uint32_t bias, std::uint32_t xl, std::uint32_t place, int count) {
  cross_each<T, kTile>(sums, x0, bias, xl, count, [&](int j, int r, const float2& x) {
    store_word(place + j * kChunkStride + r * 128, to_word<T>(x.x, x.y));
  });
}

// The thread's part of the head's dot with the last x_l, for its two rows.
template <class T, int kTile>
__device__ void add_cross_head(const float (&sums)[kTile / 2], const std::uint32_t (&x0)[kTile / 4],
                               std::uint32_t bias, std::uint32_t head, std::uint32_t xl, int count,
                               float (&dots)[2]) {
  cross_each<T, kTile>(sums, x0, bias, xl, count, [&](int j, int r, const float2& x) {
    const float2 weight = load_pair(head + j * 32);
    dots[r] = fmaf(x.y, weight.y, fmaf(x.x, weight.x, dots[r]));
  });
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
