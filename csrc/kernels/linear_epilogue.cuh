// What follows a product: bias, ReLU, cross, the store and the head's dot product.
//
// A warp owns 16 rows of a tile. The sums arrive in wgmma's layout (a thread has pairs of columns
// of two rows); 32 columns at a time go through the warp's own piece of shared memory, so that
// afterwards neighbouring threads own neighbouring 16 bytes of a row and every access to x0, xl and
// out is 16 bytes wide and coalesced. `width` sums a thread: 8 of two bytes, 4 of four.
#pragma once

#include "common/numbers.cuh"
#include "kernels/linear.h"

namespace dpiframe {

// LinearParams and what the launcher found out about them.
struct EpilogueParams {
  LinearParams linear;
  const float* column_scale;  // [n] or null: a factor for the sums, before the bias
  bool vector_out;            // out can be written 16 bytes at a time
  bool vector_cross;          // x0 and xl can be read 16 bytes at a time
};

template <class T>
struct alignas(16) Pack {
  static constexpr int kWidth = 16 / sizeof(T);
  T values[kWidth];
};

inline bool is_vector(const void* pointer, std::int64_t stride, std::size_t element) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride * element % 16 == 0;
}

inline EpilogueParams epilogue_params(const LinearParams& p, std::size_t element) {
  const bool vector_cross = is_vector(p.x0, p.ldx0, element) && is_vector(p.xl, p.ldxl, element) &&
                            p.cross_begin * element % 16 == 0;
  return {p, nullptr, is_vector(p.out, p.ldo, element), vector_cross};
}

// The columns that a thread finishes, the same for all of its rows.
template <class T>
struct EpilogueColumns {
  static constexpr int kWidth = Pack<T>::kWidth;

  __device__ EpilogueColumns(const EpilogueParams& e, int first, int limit) : first(first) {
    const LinearParams& p = e.linear;
    count = min(min(kWidth, limit - first), p.n - first);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int c = first + i;
      const bool inside = i < count;
      scale[i] = inside && e.column_scale != nullptr ? __ldg(e.column_scale + c) : 1.0f;
      bias[i] = inside && p.bias != nullptr ? __ldg(p.bias + c) : 0.0f;
      const bool in_head = inside && c >= p.head_begin && c < p.head_end;
      head[i] = in_head ? __ldg(p.head + c - p.head_begin) : 0.0f;
    }
    cross = count > 0 && first < p.cross_end && first + kWidth > p.cross_begin;
    whole_cross =
        e.vector_cross && first >= p.cross_begin && first + kWidth <= p.cross_end && count == kWidth;
  }

  int first;
  int count;  // <= 0: none
  bool cross;
  bool whole_cross;
  float scale[kWidth];
  float bias[kWidth];
  float head[kWidth];
};

// x0 and xl of one row; 1 and 0, which change nothing, outside the cross columns.
template <class T>
__device__ void read_cross(const LinearParams& p, const EpilogueColumns<T>& columns,
                           std::int64_t row, Pack<T>& x0, Pack<T>& xl) {
  const T* x0_row = static_cast<const T*>(p.x0) + row * p.ldx0 - p.cross_begin;
  const T* xl_row = static_cast<const T*>(p.xl) + row * p.ldxl - p.cross_begin;
  if (columns.whole_cross) {
    x0 = *reinterpret_cast<const Pack<T>*>(x0_row + columns.first);
    xl = *reinterpret_cast<const Pack<T>*>(xl_row + columns.first);
    return;
  }
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; ++i) {
    const int c = columns.first + i;
    const bool inside = i < columns.count && c >= p.cross_begin && c < p.cross_end;
    x0.values[i] = inside ? x0_row[c] : from_float<T>(1.0f);
    xl.values[i] = inside ? xl_row[c] : from_float<T>(0.0f);
  }
}

// Finishes one row's sums, stores them and returns their part of the head.
template <class T>
__device__ float finish_row(const EpilogueParams& e, const EpilogueColumns<T>& columns,
                            std::int64_t row, const float* sums, const Pack<T>& x0,
                            const Pack<T>& xl) {
  const LinearParams& p = e.linear;
  Pack<T> stored;
  float dot = 0.0f;
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; ++i) {
    const int c = columns.first + i;
    float value = fmaf(sums[i], columns.scale[i], columns.bias[i]);
    if (c >= p.relu_begin && c < p.relu_end && value < 0.0f) value = 0.0f;  // NaN stays
    if (columns.cross) value = fmaf(to_float(x0.values[i]), value, to_float(xl.values[i]));
    dot = i < columns.count ? fmaf(value, columns.head[i], dot) : dot;
    stored.values[i] = from_float<T>(value);
  }
  if (p.out == nullptr) return dot;
  T* out = static_cast<T*>(p.out) + row * p.ldo + columns.first;
  if (e.vector_out && columns.count == Pack<T>::kWidth) {
    *reinterpret_cast<Pack<T>*>(out) = stored;
    return dot;
  }
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; ++i)
    if (i < columns.count) out[i] = stored.values[i];
  return dot;
}

// How a warp's threads share a slice of 16 rows x 32 columns.
template <class T>
struct SliceThreads {
  static constexpr int kAcross = 32 / Pack<T>::kWidth;  // threads a row
  static constexpr int kRows = 32 / kAcross;            // rows at a time
  static constexpr int kPasses = 16 / kRows;
};

// One slice, from the warp's staging memory; the rows' dots are added to.
template <class T>
__device__ void finish_slice(const EpilogueParams& e, const float* staging, int stride,
                             std::int64_t first_row, int first_column, int limit,
                             float (&dots)[SliceThreads<T>::kPasses]) {
  using Threads = SliceThreads<T>;
  constexpr int kWidth = Pack<T>::kWidth;
  const int lane = threadIdx.x % 32;
  const int across = lane % Threads::kAcross * kWidth;
  const EpilogueColumns<T> columns(e, first_column + across, limit);
  Pack<T> x0[Threads::kPasses];
  Pack<T> xl[Threads::kPasses];
  const int first = lane / Threads::kAcross;
#pragma unroll
  for (int i = 0; i < Threads::kPasses; ++i) {
    const std::int64_t row = first_row + first + i * Threads::kRows;
    if (columns.cross && row < e.linear.rows) read_cross(e.linear, columns, row, x0[i], xl[i]);
  }
#pragma unroll
  for (int i = 0; i < Threads::kPasses; ++i) {
    const int own = first + i * Threads::kRows;
    float sums[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; j += 4)
      *reinterpret_cast<float4*>(sums + j) =
          *reinterpret_cast<const float4*>(staging + own * stride + across + j);
    if (columns.count > 0 && first_row + own < e.linear.rows)
      dots[i] += finish_row(e, columns, first_row + own, sums, x0[i], xl[i]);
  }
}

// Writes part `part` of the head for the warp's 16 rows.
template <class T>
__device__ void store_head(const LinearParams& p, std::int64_t first_row, int part,
                           float (&dots)[SliceThreads<T>::kPasses]) {
  using Threads = SliceThreads<T>;
  if (p.head_partial == nullptr) return;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Threads::kPasses; ++i) {
#pragma unroll
    for (int width = Threads::kAcross / 2; width > 0; width /= 2)
      dots[i] += __shfl_xor_sync(0xffffffffu, dots[i], width);
    const std::int64_t row = first_row + lane / Threads::kAcross + i * Threads::kRows;
    if (lane % Threads::kAcross == 0 && row < p.rows)
      p.head_partial[part * p.ld_partial + row] = dots[i];
  }
}

constexpr int kStagingStride = 40;  // floats: 8 mod 32 keeps a half warp's pairs in separate banks
constexpr int kStagingFloats = 16 * kStagingStride;  // a warp

// Finishes a warp's 16 rows of a tile, from wgmma's sums (thread: columns 8 i + 2 (lane % 4) and the
// next, of rows lane / 4 and 8 below). One slice's code, whatever kTileN: only the move to shared
// memory names the sums.
template <class T, int kTileN>
__device__ void finish_tile(const EpilogueParams& e, float* staging, std::int64_t first_row,
                            int part, const float (&sums)[kTileN / 2]) {
  constexpr int kSlices = (kTileN + 31) / 32;
  const int lane = threadIdx.x % 32;
  float* own = staging + lane / 4 * kStagingStride + lane % 4 * 2;
  float dots[SliceThreads<T>::kPasses] = {};
#pragma unroll 1
  for (int slice = 0; slice < kSlices; ++slice) {
    if (part * kTileN + slice * 32 >= e.linear.n) break;
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      if (s != slice) continue;
#pragma unroll
      for (int i = 0; i < 4 && s * 4 + i < kTileN / 8; ++i) {
        const float* four = sums + (s * 4 + i) * 4;
        *reinterpret_cast<float2*>(own + i * 8) = make_float2(four[0], four[1]);
        *reinterpret_cast<float2*>(own + i * 8 + 8 * kStagingStride) =
            make_float2(four[2], four[3]);
      }
    }
    __syncwarp();
    finish_slice<T>(e, staging, kStagingStride, first_row, part * kTileN + slice * 32,
                    (part + 1) * kTileN, dots);
  }
  store_head<T>(e.linear, first_row, part, dots);
}

}  // namespace dpiframe
