// The epilogue of a product that is compiled at load: an expression of its sums and of further
// operands, element by element. It may stand in for TileEpilogue.
//
// Threads own rows and columns as in sm90_epilogue.cuh. Results leave in TMA boxes, operands come
// straight from device memory: several groups of columns ahead of their use, as many as registers
// hold, since nothing else hides their latency.
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
    Operands ahead[kAhead];
#pragma unroll
    for (int g = 0; g < kAhead; ++g) fetch(g, ahead[g]);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int box = g / kBoxGroups;
      const bool boxed = box < kBoxes && box < num_boxes_;
      if (boxed && g % kBoxGroups == 0) boxes_.wait_free(box == 0);
      const float four[2][4] = {
          {sums[8 * g], sums[8 * g + 1], sums[8 * g + 4], sums[8 * g + 5]},
          {sums[8 * g + 2], sums[8 * g + 3], sums[8 * g + 6], sums[8 * g + 7]}};
      float values[2][4];
      compute(g, four, ahead[g % kAhead], values);
      if (g + kAhead < kGroups) fetch(g + kAhead, ahead[g % kAhead]);
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
  static constexpr int kRegisters = 16;  // for operands that are loaded ahead
  static constexpr int kOfGroup = 2 * static_cast<int>(sizeof(T)) * (Map::kOperands + 1) - 2;
  static constexpr int kWanted = kRegisters / kOfGroup;
  static constexpr int kAhead = kWanted < 1 ? 1 : kWanted < kGroups ? kWanted : kGroups;

  // Four elements of each operand in a thread's two rows, as they lie in memory.
  struct Raw {
    std::uint32_t words[4];
  };
  struct Operands {
    Raw of[2][Map::kOperands + 1];
  };

  __device__ __forceinline__ void fetch(int group, Operands& to) const {
    const int column = first_column_ + group * 16 + own_;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int o = 0; o < Map::kOperands; ++o) to.of[r][o] = load(o, row_ + r * 8, column);
  }

  __device__ __forceinline__ void compute(int group, const float (&sums)[2][4],
                                          const Operands& operands, float (&values)[2][4]) const {
    const int four = group * 4 + own_ / 4;
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
#pragma unroll
        for (int i = 0; i < 4; ++i) x[r][i][1 + o] = element(o, operands.of[r][o], i);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[r][i] = Map::of(x[r][i]);
  }

  // Zeros outside.
  __device__ __forceinline__ Raw load(int o, std::int64_t row, int column) const {
    const MapOperand& operand = e_.operands[o];
    const bool inside = row < e_.linear.rows;
    switch (Map::kind(o)) {
      case MapOperandKind::kRows:
        return load_row(static_cast<const T*>(operand.data) + row * operand.stride + column, inside,
                        column, Map::aligned(o));
      case MapOperandKind::kFloatRows:
        return load_row(static_cast<const float*>(operand.data) + row * operand.stride + column,
                        inside, column, Map::aligned(o));
      case MapOperandKind::kColumns:
        return load_row(static_cast<const float*>(operand.data) + column, true, column, true);
      case MapOperandKind::kScalar:
        return load_scalar(static_cast<const T*>(operand.data) + row * operand.stride, inside);
      case MapOperandKind::kFloatScalar:
        return load_scalar(static_cast<const float*>(operand.data) + row * operand.stride, inside);
    }
    return Raw{};
  }
  template <class U>
  __device__ __forceinline__ Raw load_row(const U* place, bool inside, int column,
                                          bool aligned) const {
    Quad<U> quad;
    if (aligned && inside && column + 4 <= e_.linear.n) {
      quad = *reinterpret_cast<const Quad<U>*>(place);
    } else {
      const float4 each = load_each(place, inside ? e_.linear.n - column : 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) quad.values[i] = from_float<U>(at(each, i));
    }
    Raw raw{};
    const auto* words = reinterpret_cast<const std::uint32_t*>(&quad);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(quad) / 4); ++i) raw.words[i] = words[i];
    return raw;
  }
  template <class U>
  __device__ __forceinline__ Raw load_scalar(const U* place, bool inside) const {
    return Raw{{__float_as_uint(inside ? to_float(*place) : 0.0f), 0u, 0u, 0u}};
  }
  __device__ __forceinline__ static float element(int o, const Raw& raw, int i) {
    switch (Map::kind(o)) {
      case MapOperandKind::kRows:
        return of_row<T>(raw, i);
      case MapOperandKind::kFloatRows:
      case MapOperandKind::kColumns:
        return __uint_as_float(raw.words[i]);
      default:
        return __uint_as_float(raw.words[0]);
    }
  }
  template <class U>
  __device__ __forceinline__ static float of_row(const Raw& raw, int i) {
    if constexpr (sizeof(U) == 4) {
      return __uint_as_float(raw.words[i]);
    } else {
      const auto bits = static_cast<unsigned short>(raw.words[i / 2] >> (16 * (i % 2)));
      return to_float(*reinterpret_cast<const U*>(&bits));
    }
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
