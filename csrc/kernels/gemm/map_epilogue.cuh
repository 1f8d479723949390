// The epilogue of a product that is compiled at load: an expression of its sums and of further
// operands, element by element. It may stand in for TileEpilogue.
//
// Threads own rows and columns as in sm90_epilogue.cuh. Results leave in TMA boxes, operands come
// straight from device memory: four columns of both rows of every operand are loaded before any is
// used.
//
// `Map` is the expression:
//   static constexpr int kOperands;
//   static constexpr MapOperandKind kind(int operand);
//   static constexpr bool aligned(int operand);   rows start at multiples of four elements
//   static float of(const float (&x)[1 + kOperands]);   of the product's element and the operands'
#pragma once

#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/map_epilogue_params.h"
#include "kernels/gemm/tma_boxes.cuh"

namespace dpiframe {

// The first `count` of four elements, one by one; not inlined, to keep the fast path short.
template <class T>
__device__ __noinline__ float4 load_each(const T* place, int count) {
  return make_float4(count > 0 ? to_float(place[0]) : 0.0f, count > 1 ? to_float(place[1]) : 0.0f,
                     count > 2 ? to_float(place[2]) : 0.0f, count > 3 ? to_float(place[3]) : 0.0f);
}
template <class T>
__device__ __noinline__ void store_each(T* place, int count, float4 values) {
  for (int i = 0; i < 4 && i < count; ++i) place[i] = from_float<T>(at(values, i));
}

template <class T, int kTileN, bool kScaled, class Map>
class MapEpilogue {
 public:
  using Params = MapEpilogueParams;

  // `columns` starts at the tile's first, `first_column`.
  __device__ MapEpilogue(const Params& e, const ColumnVectors& columns, WarpBoxes& boxes,
                         std::int64_t first_row, int first_column)
      : e_(e),
        columns_(columns),
        boxes_(boxes),
        first_row_(first_row),
        row_(first_row + threadIdx.x % 32 / 4),
        own_(threadIdx.x % 4 * 4),
        first_column_(first_column),
        num_boxes_(
            min(kBoxes, max(0, min(e.boxes_end, e.linear.n) - first_column) / (kBoxGroups * 16))) {}

  __device__ void start() {}

  __device__ __forceinline__ void finish(const float (&sums)[kTileN / 2], int) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int box = g / kBoxGroups;
      const bool boxed = box < kBoxes && box < num_boxes_;
      if (boxed && g % kBoxGroups == 0) boxes_.wait_free(box == 0);
      const float four[2][4] = {
          {sums[8 * g], sums[8 * g + 1], sums[8 * g + 4], sums[8 * g + 5]},
          {sums[8 * g + 2], sums[8 * g + 3], sums[8 * g + 6], sums[8 * g + 7]}};
      float values[2][4];
      compute(g, four, values);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (boxed)
          *reinterpret_cast<Quad<T>*>(boxes_.place(
              box % 2, (g % kBoxGroups * 16 + own_) * static_cast<int>(sizeof(T)), r)) =
              to_quad<T>(values[r]);
        else
          store(row_ + r * 8, first_column_ + g * 16 + own_, values[r]);
      }
      if (boxed && g % kBoxGroups == kBoxGroups - 1)
        boxes_.store(box % 2, first_column_ + box * kBoxGroups * 16, first_row_);
    }
  }

 private:
  static constexpr int kGroups = kTileN / 16;
  static constexpr int kBoxGroups = 8 / sizeof(T);
  static constexpr int kBoxes = kGroups / kBoxGroups;

  __device__ __forceinline__ void compute(int group, const float (&sums)[2][4],
                                          float (&values)[2][4]) const {
    const int four = group * 4 + own_ / 4;
    const int column = first_column_ + group * 16 + own_;
    const float4 bias = columns_.bias[four];
    const float4 scale = kScaled ? columns_.scale[four] : float4{};
    float x[2][4][1 + Map::kOperands];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[r][i][0] =
            kScaled ? fmaf(sums[r][i], at(scale, i), at(bias, i)) : sums[r][i] + at(bias, i);
#pragma unroll
      for (int o = 0; o < Map::kOperands; ++o) {
        float found[4];
        load(o, row_ + r * 8, column, found);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[r][i][1 + o] = found[i];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[r][i] = Map::of(x[r][i]);
  }

  // Zeros outside.
  __device__ __forceinline__ void load(int o, std::int64_t row, int column,
                                       float (&found)[4]) const {
    const MapOperand& operand = e_.operands[o];
    switch (Map::kind(o)) {
      case MapOperandKind::kRows:
        return load_row(static_cast<const T*>(operand.data) + row * operand.stride + column,
                        row < e_.linear.rows, column, Map::aligned(o), found);
      case MapOperandKind::kFloatRows:
        return load_row(static_cast<const float*>(operand.data) + row * operand.stride + column,
                        row < e_.linear.rows, column, Map::aligned(o), found);
      case MapOperandKind::kColumns:
        return load_row(static_cast<const float*>(operand.data) + column, true, column, true,
                        found);
      case MapOperandKind::kScalar:
        return load_scalar(static_cast<const T*>(operand.data) + row * operand.stride,
                           row < e_.linear.rows, found);
      case MapOperandKind::kFloatScalar:
        return load_scalar(static_cast<const float*>(operand.data) + row * operand.stride,
                           row < e_.linear.rows, found);
    }
  }
  template <class U>
  __device__ __forceinline__ void load_row(const U* place, bool inside, int column, bool aligned,
                                           float (&found)[4]) const {
    if (aligned && inside && column + 4 <= e_.linear.n) {
      const Quad<U> quad = *reinterpret_cast<const Quad<U>*>(place);
#pragma unroll
      for (int i = 0; i < 4; ++i) found[i] = to_float(quad.values[i]);
      return;
    }
    const float4 each = load_each(place, inside ? e_.linear.n - column : 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) found[i] = at(each, i);
  }
  template <class U>
  __device__ __forceinline__ void load_scalar(const U* place, bool inside,
                                              float (&found)[4]) const {
    const float value = inside ? to_float(*place) : 0.0f;
#pragma unroll
    for (float& each : found) each = value;
  }

  __device__ __forceinline__ void store(std::int64_t row, int column,
                                        const float (&values)[4]) const {
    const LinearParams& p = e_.linear;
    if (row >= p.rows) return;
    T* place = static_cast<T*>(p.out) + row * p.ldo + column;
    if (e_.vectors && column + 4 <= p.n) {
      *reinterpret_cast<Quad<T>*>(place) = to_quad<T>(values);
      return;
    }
    store_each(place, p.n - column, make_float4(values[0], values[1], values[2], values[3]));
  }

  const Params& e_;
  const ColumnVectors& columns_;
  WarpBoxes& boxes_;
  std::int64_t first_row_;
  std::int64_t row_;
  int own_;  // the thread's first column in each group of 16
  int first_column_;
  int num_boxes_;
};

}  // namespace dpiframe
