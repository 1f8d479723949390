// What follows a product: bias, ReLU, cross, the store and the head's dot product.
//
// A warp owns 16 rows of a tile. The sums arrive in wgmma's layout (a thread has pairs of columns
// of two rows); 32 columns at a time go through the warp's own piece of shared memory, so that
// afterwards neighbouring threads own neighbouring 16 bytes of a row and every access to x0, xl and
// out is 16 bytes wide and coalesced. What is read from device memory is asked for early: vectors a
// column before the product starts, x0 and xl one slice of 32 columns ahead (and into L2 before).
#pragma once

#include "kernels/linear_columns.cuh"

namespace dpiframe {

// How a warp's threads share a slice of 16 rows x 32 columns.
template <class T>
struct SliceThreads {
  static constexpr int kAcross = 32 / Pack<T>::kWidth;  // threads a row
  static constexpr int kRows = 32 / kAcross;            // rows at a time
  static constexpr int kPasses = 16 / kRows;
};

// A thread's part of a slice. `whole`: all its columns are treated alike, 16 bytes at a time.
template <class T>
struct Slice {
  using Threads = SliceThreads<T>;
  static constexpr int kWidth = Pack<T>::kWidth;

  // Columns from `limit` on belong to another tile.
  __device__ Slice(const EpilogueParams& e, std::int64_t first_row, int first_column, int limit) {
    const LinearParams& p = e.linear;
    const int lane = threadIdx.x % 32;
    across = lane % Threads::kAcross * kWidth;
    row = first_row + lane / Threads::kAcross;
    column = first_column + across;
    count = min(kWidth, min(limit, p.n) - column);
    cross = column >= p.cross_begin && column + kWidth <= p.cross_end;
    relu = column >= p.relu_begin && column + kWidth <= p.relu_end;
    whole = count == kWidth && (p.out == nullptr || e.vector_out) && (!cross || e.vector_cross) &&
            (cross || column >= p.cross_end || column + kWidth <= p.cross_begin) &&
            (relu || column >= p.relu_end || column + kWidth <= p.relu_begin);
    if (whole && cross) read_cross(p);
  }

  // Finishes and stores the slice; the rows' parts of the head are added to dots. `columns` starts
  // at the slice's first column.
  template <bool kScaled>
  __device__ void finish(const LinearParams& p, const float* staging, int stride,
                         const ColumnVectors& columns, float (&dots)[Threads::kPasses]) const {
    float4 bias[kWidth / 4];
    float4 scale[kWidth / 4];
#pragma unroll
    for (int j = 0; j < kWidth / 4; ++j) {
      bias[j] = *reinterpret_cast<const float4*>(columns.bias + across + j * 4);
      if (kScaled) scale[j] = *reinterpret_cast<const float4*>(columns.scale + across + j * 4);
    }
    const int down = threadIdx.x % 32 / Threads::kAcross;
#pragma unroll
    for (int i = 0; i < Threads::kPasses; ++i) {
      const float* sums = staging + (down + i * Threads::kRows) * stride + across;
      float values[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth / 4; ++j) {
        const float4 four = *reinterpret_cast<const float4*>(sums + j * 4);
        values[j * 4] = kScaled ? fmaf(four.x, scale[j].x, bias[j].x) : four.x + bias[j].x;
        values[j * 4 + 1] = kScaled ? fmaf(four.y, scale[j].y, bias[j].y) : four.y + bias[j].y;
        values[j * 4 + 2] = kScaled ? fmaf(four.z, scale[j].z, bias[j].z) : four.z + bias[j].z;
        values[j * 4 + 3] = kScaled ? fmaf(four.w, scale[j].w, bias[j].w) : four.w + bias[j].w;
      }
      const std::int64_t own = row + i * Threads::kRows;
      if (own >= p.rows) continue;
      if (whole)
        finish_whole(p, own, i, values);
      else
        finish_each(p, own, values);
      if (p.head_partial != nullptr) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j)
          dots[i] = j < count ? fmaf(values[j], columns.head[across + j], dots[i]) : dots[i];
      }
    }
  }

  __device__ void read_cross(const LinearParams& p) {
    const T* x0_row = static_cast<const T*>(p.x0) + row * p.ldx0 + column - p.cross_begin;
    const T* xl_row = static_cast<const T*>(p.xl) + row * p.ldxl + column - p.cross_begin;
#pragma unroll
    for (int i = 0; i < Threads::kPasses; ++i) {
      if (row + i * Threads::kRows >= p.rows) continue;
      x0[i] = *reinterpret_cast<const Pack<T>*>(x0_row + i * Threads::kRows * p.ldx0);
      xl[i] = *reinterpret_cast<const Pack<T>*>(xl_row + i * Threads::kRows * p.ldxl);
    }
  }

  __device__ void finish_whole(const LinearParams& p, std::int64_t own, int pass,
                               float (&values)[kWidth]) const {
    if (relu) {
#pragma unroll
      for (float& value : values) value = at_least(value, 0.0f);
    }
    if (cross) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        values[i] = fmaf(to_float(x0[pass].values[i]), values[i], to_float(xl[pass].values[i]));
    }
    if (p.out == nullptr) return;
    Pack<T> stored;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) stored.values[i] = from_float<T>(values[i]);
    *reinterpret_cast<Pack<T>*>(static_cast<T*>(p.out) + own * p.ldo + column) = stored;
  }

  // Any alignment, any ranges.
  __device__ void finish_each(const LinearParams& p, std::int64_t own,
                              float (&values)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int c = column + i;
      if (i >= count) continue;
      if (c >= p.relu_begin && c < p.relu_end) values[i] = at_least(values[i], 0.0f);
      if (c >= p.cross_begin && c < p.cross_end) {
        const std::int64_t place = c - p.cross_begin;
        values[i] = fmaf(to_float(static_cast<const T*>(p.x0)[own * p.ldx0 + place]), values[i],
                         to_float(static_cast<const T*>(p.xl)[own * p.ldxl + place]));
      }
      if (p.out != nullptr) static_cast<T*>(p.out)[own * p.ldo + c] = from_float<T>(values[i]);
    }
  }

  std::int64_t row;
  int across, column, count;
  bool whole, cross, relu;
  Pack<T> x0[Threads::kPasses];
  Pack<T> xl[Threads::kPasses];
};

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
// memory names the sums. `columns` starts at the tile's first.
template <class T, int kTileN, bool kScaled>
__device__ void finish_tile(const EpilogueParams& e, float* staging, const ColumnVectors& columns,
                            std::int64_t first_row, int part, const float (&sums)[kTileN / 2]) {
  constexpr int kSlices = (kTileN + 31) / 32;
  const int lane = threadIdx.x % 32;
  const int limit = (part + 1) * kTileN;
  float* own = staging + lane / 4 * kStagingStride + lane % 4 * 2;
  float dots[SliceThreads<T>::kPasses] = {};
  Slice<T> next(e, first_row, part * kTileN, limit);
#pragma unroll 1
  for (int slice = 0; slice < kSlices; ++slice) {
    const Slice<T> finishing = next;
    if (slice + 1 < kSlices)
      next = Slice<T>(e, first_row, part * kTileN + slice * 32 + 32, limit);
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
    finishing.template finish<kScaled>(e.linear, staging, kStagingStride,
                                       columns.from(slice * 32), dots);
  }
  store_head<T>(e.linear, first_row, part, dots);
}

}  // namespace dpiframe
