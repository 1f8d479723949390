// The epilogue of a product that is compiled at load: an expression of its sums and of further
// operands, element by element. It may stand in for TileEpilogue.
//
// A warp owns 16 rows of each block of 64 rows. Its sums go through its part of shared memory, 64
// columns at a time, so that a thread then has eight neighbouring columns of a row: operands and
// results move 16 bytes at a time, whole lines a warp. And so the expression, which may be long, is
// a loop: unrolled for all of a tile's columns it would come from L2, over and over, as
// instructions. The operands' rows are fetched into L2 while the tile is multiplied.
//
// `Map` is the expression:
//   static constexpr int kOperands;
//   static constexpr MapOperandKind kind(int operand);
//   static constexpr bool aligned(int operand);   rows start at multiples of 16 bytes
//   static float of(const float (&x)[1 + kOperands]);   of the product's element and the operands'
#pragma once

#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/mapped/map_epilogue_params.h"
#include "kernels/gemm/tma_boxes.cuh"

namespace dpiframe {

template <class T, int kTileN, bool kScaled, class Map>
class MapEpilogue {
 public:
  using Params = MapEpilogueParams;

  // Of a warp's rows from `first_row` on, and of those 64 below for each further block. `columns`
  // starts at the tile's first, `first_column`.
  __device__ MapEpilogue(const Params& e, const ColumnVectors& columns, const WarpBoxes& boxes,
                         std::int64_t first_row, int first_column)
      : e_(e),
        columns_(columns),
        staged_(static_cast<float4*>(boxes.memory())),
        first_row_(first_row),
        first_column_(first_column),
        limit_(min(e.linear.n, first_column + kTileN)) {}

  // Asks for the operands' rows: a lane has one.
  template <int kBlocks>
  __device__ __forceinline__ void start() const {
    const int lane = threadIdx.x % 32;
    const std::int64_t row = first_row_ + lane / 16 * 64 + lane % 16;
    if (lane >= 16 * kBlocks || row >= e_.linear.rows) return;
#pragma unroll
    for (int o = 0; o < Map::kOperands; ++o) {
      if (!Map::aligned(o)) continue;
      if (Map::kind(o) == MapOperandKind::kRows) prefetch<T>(o, row);
      if (Map::kind(o) == MapOperandKind::kFloatRows) prefetch<float>(o, row);
    }
  }

  template <int kBlocks>
  __device__ __forceinline__ void finish(const float (&sums)[kBlocks][kTileN / 2], int) const {
#pragma unroll 1
    for (int i = 0; i < kBlocks * kChunks; ++i) {
      const int chunk = i % kChunks;
      if (first_column_ + chunk * kChunk >= limit_) continue;
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
          if (i == b * kChunks + c) stage(sums[b], c);
      __syncwarp();
      compute(first_row_ + i / kChunks * 64, chunk);
    }
  }

 private:
  static constexpr int kEach = 8;    // columns a thread
  static constexpr int kChunk = 64;  // columns in shared memory
  static constexpr int kChunks = (kTileN + kChunk - 1) / kChunk;
  static constexpr int kTail = kTileN - (kChunks - 1) * kChunk;
  // Threads that share a row, as a power of two: fewer where the last chunk is narrow.
  static constexpr int kTailShift = kTail <= 16 ? 1 : kTail <= 32 ? 2 : 3;

  static constexpr int words(MapOperandKind kind) {
    if (kind == MapOperandKind::kScalar || kind == MapOperandKind::kFloatScalar) return 1;
    return kind == MapOperandKind::kRows ? 2 * static_cast<int>(sizeof(T)) : kEach;
  }
  static constexpr int all_words() {
    int sum = 0;
    for (int o = 0; o < Map::kOperands; ++o) sum += words(Map::kind(o));
    return sum;
  }
  static constexpr int kAtOnce = all_words() <= 16 ? 2 : 1;  // rows whose operands are in flight

  // A thread's elements of an operand, as they lie in memory.
  struct Raw {
    std::uint32_t words[kEach];
  };
  struct Operands {
    Raw of[Map::kOperands + 1];
  };

  template <class U>
  __device__ __forceinline__ void prefetch(int o, std::int64_t row) const {
    const MapOperand& operand = e_.operands[o];
    const int bytes = (limit_ - first_column_) * static_cast<int>(sizeof(U)) / 16 * 16;
    if (bytes > 0)
      tma_bulk_prefetch(static_cast<const U*>(operand.data) + row * operand.stride + first_column_,
                        bytes);
  }

  // The place of four columns of one of 16 rows: odd rows are swizzled, so that the eight threads
  // that write two rows at once meet no bank twice.
  __device__ __forceinline__ float4* place(int row, int four) const {
    return staged_ + row * (kChunk / 4) + (four ^ (row % 2 * 4));
  }

  // A thread's sums of a chunk: its columns of group g are 16 g + 4 (lane % 4) + {0..3}, in rows
  // lane / 4 and 8 below (sm90_epilogue.cuh).
  __device__ __forceinline__ void stage(const float (&sums)[kTileN / 2], int chunk) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kChunk / 16; ++i) {
      const int g = chunk * (kChunk / 16) + i;
      if (g >= kTileN / 16) break;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *place(lane / 4 + r * 8, i * 4 + lane % 4) =
            make_float4(sums[8 * g + 2 * r], sums[8 * g + 2 * r + 1], sums[8 * g + 2 * r + 4],
                        sums[8 * g + 2 * r + 5]);
    }
  }

  __device__ __forceinline__ void compute(std::int64_t first_row, int chunk) const {
    const int lane = threadIdx.x % 32;
    const int shift = chunk == kChunks - 1 ? kTailShift : 3;
    const int step = 32 >> shift;
    const int own = lane % (1 << shift) * kEach;
    const int column = first_column_ + chunk * kChunk + own;
    const int count = min(kEach, limit_ - column);
    if (count <= 0) return;
    const int four = (chunk * kChunk + own) / 4;
#pragma unroll 1
    for (int r = lane >> shift; r < 16; r += step * kAtOnce) {
      // Rows that are not there are read as the last one.
      Operands operands[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const std::int64_t row = min(first_row + min(r + u * step, 15), e_.linear.rows - 1);
#pragma unroll
        for (int o = 0; o < Map::kOperands; ++o) operands[u].of[o] = load(o, row, column, count);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int own_row = min(r + u * step, 15);
        float values[kEach];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 sum = *place(own_row, own / 4 + half);
          const float4 bias = columns_.bias[four + half];
          const float4 scale = kScaled ? columns_.scale[four + half] : float4{};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float x[1 + Map::kOperands];
            x[0] = kScaled ? fmaf(at(sum, i), at(scale, i), at(bias, i)) : at(sum, i) + at(bias, i);
#pragma unroll
            for (int o = 0; o < Map::kOperands; ++o)
              x[1 + o] = element(o, operands[u].of[o], half * 4 + i);
            values[half * 4 + i] = Map::of(x);
          }
        }
        if (r + u * step < 16 && first_row + own_row < e_.linear.rows)
          store(first_row + own_row, column, count, values);
      }
    }
  }

  // `count` elements from `column` on; of a scalar its one element.
  __device__ __forceinline__ Raw load(int o, std::int64_t row, int column, int count) const {
    const MapOperand& operand = e_.operands[o];
    const std::int64_t first = row * operand.stride;
    switch (Map::kind(o)) {
      case MapOperandKind::kRows:
        return load_row(static_cast<const T*>(operand.data) + first + column, count,
                        Map::aligned(o));
      case MapOperandKind::kFloatRows:
        return load_row(static_cast<const float*>(operand.data) + first + column, count,
                        Map::aligned(o));
      case MapOperandKind::kColumns:
        return load_row(static_cast<const float*>(operand.data) + column, count, true);
      case MapOperandKind::kScalar:
        return Raw{{__float_as_uint(to_float(static_cast<const T*>(operand.data)[first]))}};
      case MapOperandKind::kFloatScalar:
        return Raw{{__float_as_uint(static_cast<const float*>(operand.data)[first])}};
    }
    return Raw{};
  }
  // Aligned rows are padded to whole vectors: what lies behind the last column may be read.
  template <class U>
  __device__ __forceinline__ Raw load_row(const U* elements, int count, bool aligned) const {
    Raw raw{};
    if (aligned) {
      const auto* vectors = reinterpret_cast<const uint4*>(elements);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(U)) / 2; ++i) {
        const uint4 words = vectors[i];
        raw.words[4 * i] = words.x;
        raw.words[4 * i + 1] = words.y;
        raw.words[4 * i + 2] = words.z;
        raw.words[4 * i + 3] = words.w;
      }
      return raw;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= count) continue;
      if constexpr (sizeof(U) == 4)
        raw.words[i] = __float_as_uint(elements[i]);
      else
        raw.words[i / 2] |= std::uint32_t{reinterpret_cast<const unsigned short*>(elements)[i]}
                            << (16 * (i % 2));
    }
    return raw;
  }
  __device__ __forceinline__ static float element(int o, const Raw& raw, int i) {
    switch (Map::kind(o)) {
      case MapOperandKind::kRows:
        if constexpr (sizeof(T) == 4) {
          return __uint_as_float(raw.words[i]);
        } else {
          const auto bits = static_cast<unsigned short>(raw.words[i / 2] >> (16 * (i % 2)));
          return to_float(*reinterpret_cast<const T*>(&bits));
        }
      case MapOperandKind::kFloatRows:
      case MapOperandKind::kColumns:
        return __uint_as_float(raw.words[i]);
      default:
        return __uint_as_float(raw.words[0]);
    }
  }

  __device__ __forceinline__ void store(std::int64_t row, int column, int count,
                                        const float (&values)[kEach]) const {
    const LinearParams& p = e_.linear;
    T* target = static_cast<T*>(p.out) + row * p.ldo + column;
    if (e_.vectors && count == kEach) {
      alignas(16) T packed[kEach];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float four[4] = {values[4 * half], values[4 * half + 1], values[4 * half + 2],
                               values[4 * half + 3]};
        *reinterpret_cast<Quad<T>*>(packed + 4 * half) = to_quad<T>(four);
      }
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(packed)) / 16; ++i)
        reinterpret_cast<uint4*>(target)[i] = reinterpret_cast<const uint4*>(packed)[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i < count) target[i] = from_float<T>(values[i]);
  }

  const Params& e_;
  const ColumnVectors& columns_;
  float4* staged_;  // 16 rows of a chunk
  std::int64_t first_row_;
  int first_column_;
  int limit_;  // the first column that is not the tile's
};

}  // namespace dpiframe
