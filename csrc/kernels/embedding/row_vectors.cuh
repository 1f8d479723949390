// What a thread of the lookup does with its vectors of a sample's embedding rows: copies them, and
// sums them for FM.
#pragma once

#include <type_traits>

#include "cuda/conversions.cuh"
#include "kernels/embedding/checked_rows.cuh"

namespace dpiframe {

// kWidth numbers that move as one access: 16 bytes where kWidth is 4 floats or 8 halves.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vec {
  T values[kWidth];
};

constexpr int kUnroll = 5;              // rows a thread has in flight
constexpr unsigned kAll = 0xffffffffu;  // threads of a warp

// A vector's sum over fields, and its sum of squares over fields and numbers. Double for fp32: the
// two cancel, and the difference for 39 fields of deviation 1 must be exact to 1e-5.
template <class T, int kWidth>
struct Sums {
  using Number = std::conditional_t<std::is_same_v<T, float>, double, float>;
  Number sum[kWidth] = {};
  Number squares = 0;
};

// Tells the compiler that a pointer loaded from memory points to device memory.
template <class T>
__device__ const T& in_device_memory(const T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return *pointer;
}

// A vector as it is moved: as 32-bit words, one a register.
template <class T, int kWidth>
struct MovedVector {
  static constexpr int kBytes = sizeof(T) * kWidth;
  using Word = std::conditional_t<kBytes % 4 == 0, std::uint32_t, std::uint16_t>;
  using Type = Vec<Word, kBytes / sizeof(Word)>;
};

// Copies vector v of kUnroll embedding rows of one sample: those of the first of `columns` and
// `rows`, and of every rows_at_once-th after it. `out`: where vector v of a row at column 0 goes.
template <class T, int kWidth>
__device__ void copy_vectors(const LookupColumns* columns, const char* const* rows,
                             int rows_at_once, unsigned v, T* out, bool fm, Sums<T, kWidth>& sums) {
  using Vector = typename MovedVector<T, kWidth>::Type;
  Vector vectors[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const auto* row = reinterpret_cast<const Vector*>(rows[u * rows_at_once]);
    if (v * kWidth < columns[u * rows_at_once].dim) vectors[u] = in_device_memory(row + v);
  }
  if (out != nullptr) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const LookupColumns target = load_whole<int2>(columns + u * rows_at_once);
      if (v * kWidth < target.dim) *reinterpret_cast<Vector*>(out + target.first) = vectors[u];
    }
  }
  if (!fm) return;
  using VectorValues = Vec<T, kWidth>;
  using Number = typename Sums<T, kWidth>::Number;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (v * kWidth >= columns[u * rows_at_once].fm_dim) continue;
    const auto values = __builtin_bit_cast(VectorValues, vectors[u]);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Number value = to_float(values.values[k]);
      sums.sum[k] += value;
      sums.squares += value * value;
    }
  }
}

// Vector v of dense features as rows of one sample: every rows_at_once-th of the slot's from
// `first_row` on. `x`: the sample's dense features, `x_stride` apart; `out`: the sample's row, or
// null.
template <class T, int kWidth>
__device__ void scale_vectors(const DenseSlot& slot, const float* x, int x_stride, int first_row,
                              int rows_at_once, unsigned v, T* out, Sums<T, kWidth>& sums) {
  using Number = typename Sums<T, kWidth>::Number;
  constexpr int kAtOnce = kWidth < 4 ? kWidth : 4;
#pragma unroll 2
  for (int n = first_row; n < slot.count; n += rows_at_once) {
    const int element = n * slot.dim + static_cast<int>(v) * kWidth;
    const float number = x[(slot.first + n) * x_stride];
    Vec<T, kWidth> scaled;
#pragma unroll
    for (int k = 0; k < kWidth; k += kAtOnce) {
      const auto weights = *reinterpret_cast<const Vec<float, kAtOnce>*>(slot.weight + element + k);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        scaled.values[k + i] = from_float<T>(number * weights.values[i]);
    }
    if (out != nullptr) *reinterpret_cast<Vec<T, kWidth>*>(out + slot.column + element) = scaled;
    if (!slot.in_fm) continue;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Number value = to_float(scaled.values[k]);
      sums.sum[k] += value;
      sums.squares += value * value;
    }
  }
}

// Sums `part` over the threads of a warp that differ in the bits [from, to) of their lane.
template <class Number>
__device__ Number sum_over(Number part, int from, int to) {
  for (int offset = from; offset < to; offset *= 2) part += __shfl_xor_sync(kAll, part, offset);
  return part;
}

// A thread's share of sum_k (sum^2 - squares), after summing its vector over the team.
template <class T, int kWidth>
__device__ auto fm_of_vector(Sums<T, kWidth> sums, int row_threads, int team) {
  for (int offset = row_threads; offset < team; offset *= 2) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums.sum[k] += __shfl_xor_sync(kAll, sums.sum[k], offset);
    sums.squares += __shfl_xor_sync(kAll, sums.squares, offset);
  }
  auto fm = -sums.squares;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) fm += sums.sum[k] * sums.sum[k];
  return fm;
}

}  // namespace dpiframe
