// Operands of float32 as two float16, large and small, for three products of those instead of one
// (FP16x3): twice as fast as three of tf32. So far rows that are an outer product, and a constant
// matrix that goes through a ring.
#pragma once

#include "kernels/tile/fragments.cuh"
#include "kernels/tile/rows.cuh"

namespace tile {

// float32 numbers as float16: a b = large large + large small + small large; what is left out is
// below float32's own rounding.
template <>
struct Fragment<Fp16x3> {
  Fragment<Half> large;
  Fragment<Half> small;

  // Two neighbours of register i.
  DPIF_DEVICE void put(int i, float x, float y) {
    large.of[i] = pair<Half>(x, y);
    small.of[i] = pair<Half>(x - widen(Half{static_cast<u16>(large.of[i])}),
                             y - widen(Half{static_cast<u16>(large.of[i] >> 16)}));
  }
};

template <>
struct Columns<Fp16x3> {
  Columns<Half> large;
  Columns<Half> small;
  DPIF_DEVICE void multiply(float (&low)[4], float (&high)[4], const Fragment<Fp16x3>& a) const {
#ifndef DPIF_TILE_TF32
    small.multiply(low, high, a.large);
    large.multiply(low, high, a.small);
#endif
    large.multiply(low, high, a.large);
  }
};

// A constant matrix in blocks (Blocks): of each chunk the large parts, then the small ones; behind
// all chunks the inverse of the power of two by which a column was multiplied.
template <int kProducts, int kOuter, int kInner, int kColumns>
struct Fp16x3Blocks {
  static constexpr int kChunkBytes = padded(kInner, 16) * padded(kColumns, 16) * 4;
  const void* data;

  DPIF_DEVICE float inverse(int product, int column) const {
    constexpr int kAll = padded(kColumns, 16);
    const char* behind =
        static_cast<const char*>(data) + static_cast<long long>(kProducts) * kOuter * kChunkBytes;
    const auto* inverses = reinterpret_cast<const float*>(behind) + product * kAll;
    return inverses[column < kAll ? column : kAll - 1];
  }
};

// The power of two that brings numbers up to `largest` below 2^(kTo + 1); 1 where there is none.
template <int kTo>
DPIF_DEVICE float power_below(float largest) {
  const int exponent = static_cast<int>(float_to_bits(largest) >> 23);
  if (exponent == 0 || exponent == 255) return 1.0f;
  const int found = 254 + kTo - exponent;
  return bits_to_float(static_cast<u32>(found < 253 ? found : 253) << 23);
}

// Rows are multiplied by a power of two, so that float16 holds them.
template <int kOuter, int kInner, int kRows, int kRowTiles, class... F>
struct RowFragments<Fp16x3, kOuter, kInner, kRows, kRowTiles, Separable<F...>>
    : RowsOfLane<kRows, kRowTiles> {
  using A = Separable<F...>;
  static constexpr int kSteps = padded(kInner, 16) / 16;
  using RowsOfLane<kRows, kRowTiles>::row;
  const A& a;
  int product;
  float fixed[kRowTiles][kSteps][8];
  float powers[kRowTiles][2];    // of the scales
  float inverses[kRowTiles][2];  // of both factors' powers

  DPIF_DEVICE RowFragments(const A& a, int product, int first_row)
      : RowsOfLane<kRows, kRowTiles>{first_row}, a(a), product(product) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = 0.0f;
        float scale = 0.0f;
        each(half, [&](int step, int k, int inner) {
          const bool inside = kInner % 16 == 0 || inner < kInner;
          fixed[i][step][k] = inside ? a.fixed_one(product, row(i, half), inner) : 0.0f;
          largest = larger(largest, magnitude(fixed[i][step][k]));
        });
        for (int outer = thread() % 4; outer < kOuter; outer += 4)
          scale = larger(scale, magnitude(a.scale_one(product, row(i, half), outer)));
        const float power = power_below<7>(over_lanes<4, Max>(largest));
        powers[i][half] = power_below<6>(over_lanes<4, Max>(scale));
        inverses[i][half] = 1.0f / power * (1.0f / powers[i][half]);
        each(half, [&](int step, int k, int) { fixed[i][step][k] *= power; });
      }
  }
  DPIF_DEVICE void read(Fragment<Fp16x3> (&to)[kRowTiles], int outer, int step) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const float scales[2] = {a.scale_one(product, row(i, 0), outer) * powers[i][0],
                               a.scale_one(product, row(i, 1), outer) * powers[i][1]};
#pragma unroll
      for (int k = 0; k < 4; ++k)
        to[i].put(k, fixed[i][step][k * 2] * scales[k % 2],
                  fixed[i][step][k * 2 + 1] * scales[k % 2]);
    }
  }
  // What the sums are of the numbers as they were.
  template <int kColumnTiles, class B>
  DPIF_DEVICE void finish(float (&sums)[kRowTiles][kColumnTiles][2][4], const B& b,
                          int first_tile) const {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int column = (first_tile + j) * 16 + k / 2 * 8 + thread() % 4 * 2 + k % 2;
        const float inverse = b.inverse(product, column);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            sums[i][j][k / 2][half * 2 + k % 2] *= inverses[i][half] * inverse;
      }
  }

 private:
  static DPIF_DEVICE float magnitude(float x) { return x < 0.0f ? -x : x; }
  // Of a row's elements in a lane: the step, the place in it, the inner place.
  template <class Body>
  static DPIF_DEVICE void each(int half, const Body& body) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        body(step, (k / 2 * 2 + half) * 2 + k % 2,
             step * 16 + k / 2 * 8 + thread() % 4 * 2 + k % 2);
  }
};

}  // namespace tile
