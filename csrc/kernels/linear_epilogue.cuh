// What follows a product: bias, ReLU, cross, the store and the head's dot product.
//
// A warp owns 16 rows of a tile, a thread two of them (lane / 4 and 8 below). wgmma gives a thread
// pairs of columns; the rows of a prepared weight are in such an order (physical_row) that two
// pairs are the four columns 16 g + 4 (lane % 4) + {0..3} of group g. So four threads read and
// write whole sectors of x0, xl and out, and nothing has to be exchanged.
#pragma once

#include "kernels/linear_columns.cuh"

namespace dpiframe {

// Four columns of a row.
template <class T>
struct alignas(4 * sizeof(T)) Quad {
  T values[4];
};

__device__ inline float at(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// One element: any alignment, any ranges. Returns it for the head.
template <class T>
__device__ float finish_element(const LinearParams& p, std::int64_t row, int column, float value) {
  if (column >= p.relu_begin && column < p.relu_end) value = at_least(value, 0.0f);
  if (column >= p.cross_begin && column < p.cross_end) {
    const int own = column - p.cross_begin;
    value = fmaf(to_float(static_cast<const T*>(p.x0)[row * p.ldx0 + own]), value,
                 to_float(static_cast<const T*>(p.xl)[row * p.ldxl + own]));
  }
  if (p.out != nullptr) static_cast<T*>(p.out)[row * p.ldo + column] = from_float<T>(value);
  return value;
}

// Four elements one by one; returns their part of the head. Kept out of the fast path's way.
template <class T, bool kScaled>
__device__ __noinline__ float finish_each(const LinearParams& p, const ColumnVectors columns,
                                          std::int64_t row, int first_column, int own,
                                          float4 sums) {
  float dot = 0.0f;
  for (int i = 0; i < 4; ++i) {
    const int column = first_column + own + i;
    if (row >= p.rows || column >= p.n) continue;
    const float scale = kScaled ? at(columns.scale[own / 4], i) : 1.0f;
    const float value = fmaf(at(sums, i), scale, at(columns.bias[own / 4], i));
    dot = fmaf(finish_element<T>(p, row, column, value), at(columns.head[own / 4], i), dot);
  }
  return dot;
}

// A thread's two rows of one tile.
template <class T, int kTileN, bool kScaled>
class TileEpilogue {
 public:
  // `columns` starts at the tile's first, `first_column`.
  __device__ TileEpilogue(const EpilogueParams& e, const ColumnVectors& columns,
                          std::int64_t first_row, int first_column)
      : e_(e),
        columns_(columns),
        row_(first_row + threadIdx.x % 32 / 4),
        own_(threadIdx.x % 4 * 4),
        first_column_(first_column) {}

  // sums: wgmma's; `part` is the head's.
  __device__ void finish(const float (&sums)[kTileN / 2], int part) {
    const LinearParams& p = e_.linear;
    const bool crosses = first_column_ < p.cross_end && first_column_ + kTileN > p.cross_begin;
    if (!e_.vectors)
      finish_groups<false, false>(sums);
    else if (crosses)
      finish_groups<true, true>(sums);
    else
      finish_groups<true, false>(sums);
    if (p.head_partial == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float dot = dots_[r];
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
      const std::int64_t row = row_ + r * 8;
      if (threadIdx.x % 4 == 0 && row < p.rows) p.head_partial[part * p.ld_partial + row] = dot;
    }
  }

 private:
  // Groups whose x0 and xl are asked for together.
  static constexpr int kBatch = 4;
  static constexpr int kGroups = kTileN / 16;

  template <bool kVectors, bool kCross>
  __device__ void finish_groups(const float (&sums)[kTileN / 2]) {
#pragma unroll
    for (int g0 = 0; g0 < kGroups; g0 += kBatch) {
      if (kCross) {
#pragma unroll
        for (int g = g0; g < g0 + kBatch && g < kGroups; ++g) read_cross(g, g - g0);
      }
#pragma unroll
      for (int g = g0; g < g0 + kBatch && g < kGroups; ++g) {
        const float four[2][4] = {
            {sums[8 * g], sums[8 * g + 1], sums[8 * g + 4], sums[8 * g + 5]},
            {sums[8 * g + 2], sums[8 * g + 3], sums[8 * g + 6], sums[8 * g + 7]}};
        if (kVectors)
          finish_quads<kCross>(g, g - g0, four);
        else
          finish_singly(g * 16 + own_, four);
      }
    }
  }

  // 1 and 0, which change nothing, outside the cross columns.
  __device__ void read_cross(int group, int slot) {
    const LinearParams& p = e_.linear;
    const int column = first_column_ + group * 16 + own_;
    const bool inside = column >= p.cross_begin && column < p.cross_end;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t row = row_ + r * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x0_[slot][r].values[i] = from_float<T>(1.0f);
        xl_[slot][r].values[i] = from_float<T>(0.0f);
      }
      if (!inside || row >= p.rows) continue;
      const T* x0 = static_cast<const T*>(p.x0) + row * p.ldx0 + column - p.cross_begin;
      const T* xl = static_cast<const T*>(p.xl) + row * p.ldxl + column - p.cross_begin;
      x0_[slot][r] = *reinterpret_cast<const Quad<T>*>(x0);
      xl_[slot][r] = *reinterpret_cast<const Quad<T>*>(xl);
    }
  }

  template <bool kCross>
  __device__ void finish_quads(int group, int slot, const float (&four)[2][4]) {
    const LinearParams& p = e_.linear;
    const int own = group * 16 + own_;
    const bool has_head = p.head_partial != nullptr;
    const float4 bias = columns_.bias[own / 4];
    const float4 least = columns_.least[own / 4];
    const float4 scale = kScaled ? columns_.scale[own / 4] : float4{};
    const float4 head = has_head ? columns_.head[own / 4] : float4{};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float values[4];
      Quad<T> stored;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = four[r][i];
        values[i] = kScaled ? fmaf(sum, at(scale, i), at(bias, i)) : sum + at(bias, i);
        values[i] = at_least(values[i], at(least, i));
        if (kCross)
          values[i] =
              fmaf(to_float(x0_[slot][r].values[i]), values[i], to_float(xl_[slot][r].values[i]));
        stored.values[i] = from_float<T>(values[i]);
        if (has_head) dots_[r] = fmaf(values[i], at(head, i), dots_[r]);
      }
      const std::int64_t row = row_ + r * 8;
      if (p.out == nullptr || row >= p.rows || first_column_ + own >= p.n) continue;
      T* out = static_cast<T*>(p.out) + row * p.ldo + first_column_ + own;
      *reinterpret_cast<Quad<T>*>(out) = stored;
    }
  }

  __device__ void finish_singly(int own, const float (&four)[2][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float4 sums{four[r][0], four[r][1], four[r][2], four[r][3]};
      dots_[r] +=
          finish_each<T, kScaled>(e_.linear, columns_, row_ + r * 8, first_column_, own, sums);
    }
  }

  const EpilogueParams& e_;
  const ColumnVectors& columns_;
  std::int64_t row_;
  int own_;  // the thread's place in each group of 16 columns
  int first_column_;
  float dots_[2] = {};
  Quad<T> x0_[kBatch][2];
  Quad<T> xl_[kBatch][2];
};

}  // namespace dpiframe
