// The epilogue of a product: bias, ReLU, cross, the store and the head's dot product.
//
// Here one element at a time; sm90_epilogue.cuh has the fast form.
#pragma once

#include <type_traits>

#include "kernels/gemm/epilogue_columns.cuh"

namespace dpiframe {

// One instruction; two single conversions would be several.
template <class Pair>
__device__ Pair to_pair(float low, float high) {
  if constexpr (std::is_same_v<Pair, __half2>)
    return __floats2half2_rn(low, high);
  else
    return __floats2bfloat162_rn(low, high);
}

// Four columns of a row.
template <class T>
struct alignas(4 * sizeof(T)) Quad {
  T values[4];
};

template <class T>
__device__ Quad<T> to_quad(const float (&values)[4]) {
  Quad<T> quad;
  if constexpr (sizeof(T) == 2) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    auto* pairs = reinterpret_cast<Pair*>(quad.values);
    pairs[0] = to_pair<Pair>(values[0], values[1]);
    pairs[1] = to_pair<Pair>(values[2], values[3]);
  } else {
    for (int i = 0; i < 4; ++i) quad.values[i] = values[i];
  }
  return quad;
}

__device__ inline float at(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// One element, at any alignment and in any ranges. Returns it for the head's dot.
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

// Four elements one by one; returns their part of the head's dot. Not inlined, to keep the fast
// path short.
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

}  // namespace dpiframe
