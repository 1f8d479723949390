// What a thread of the lookup does with its pieces of a sample's rows: copies them, and adds them
// up for FM.
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

// A piece's sum over fields, and its sum of squares over fields and numbers. Double for fp32: the
// two cancel, and what is left of 39 fields of deviation 1 must be right to 1e-5.
template <class T, int kWidth>
struct Sums {
  using Number = std::conditional_t<std::is_same_v<T, float>, double, float>;
  Number sum[kWidth] = {};
  Number squares = 0;
};

// Tells the compiler that a pointer it found in memory is one to device memory.
template <class T>
__device__ const T& in_device_memory(const T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return *pointer;
}

// A piece as it is moved: as words, so that no register holds half of one.
template <class T, int kWidth>
struct MovedPiece {
  static constexpr int kBytes = sizeof(T) * kWidth;
  using Word = std::conditional_t<kBytes % 4 == 0, std::uint32_t, std::uint16_t>;
  using Type = Vec<Word, kBytes / sizeof(Word)>;
};

// Copies piece v of kUnroll rows of one sample: those of the first of `columns` and `rows`, and of
// every slices-th after it. `out` is where piece v of a row at column 0 goes.
template <class T, int kWidth>
__device__ void copy_pieces(const LookupColumns* columns, const char* const* rows, int slices,
                            unsigned v, T* out, bool fm, Sums<T, kWidth>& sums) {
  using Piece = typename MovedPiece<T, kWidth>::Type;
  Piece pieces[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const auto* row = reinterpret_cast<const Piece*>(rows[u * slices]);
    if (v * kWidth < columns[u * slices].dim) pieces[u] = in_device_memory(row + v);
  }
  if (out != nullptr) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const LookupColumns place = load_whole<int2>(columns + u * slices);
      if (v * kWidth < place.dim) *reinterpret_cast<Piece*>(out + place.first) = pieces[u];
    }
  }
  if (!fm) return;
  using PieceValues = Vec<T, kWidth>;
  using Number = typename Sums<T, kWidth>::Number;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (v * kWidth >= columns[u * slices].fm_dim) continue;
    const auto values = __builtin_bit_cast(PieceValues, pieces[u]);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Number value = to_float(values.values[k]);
      sums.sum[k] += value;
      sums.squares += value * value;
    }
  }
}

// Adds up `part` over the threads of a warp that differ in the bits [from, to) of their number.
template <class Number>
__device__ Number sum_over(Number part, int from, int to) {
  for (int offset = from; offset < to; offset *= 2) part += __shfl_xor_sync(kAll, part, offset);
  return part;
}

// A lane's share of sum_k (sum^2 - squares): the slices' sums of its piece, added up.
template <class T, int kWidth>
__device__ auto fm_of_piece(Sums<T, kWidth> sums, int lanes, int team) {
  for (int offset = lanes; offset < team; offset *= 2) {
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
