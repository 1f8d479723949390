// What follows a product: bias, ReLU, cross, the store and the head's dot product.
//
// A warp owns 16 rows of a tile. The sums arrive in wgmma's layout (a thread has pairs of columns
// of two rows); 32 columns at a time go through the warp's own piece of shared memory, so that
// afterwards neighbouring threads own neighbouring 16 bytes of a row and every access to x0, xl and
// out is 16 bytes wide and coalesced.
#pragma once

#include "common/numbers.cuh"
#include "kernels/linear.h"

namespace dpiframe {

// LinearParams and what the launcher found out about them.
struct EpilogueParams {
  LinearParams linear;
  const float* column_scale;  // [n], 16-byte aligned, or null: a factor for the sums
  bool vector_bias;           // bias can be read,
  bool vector_out;            // out written,
  bool vector_cross;          // x0 and xl read 16 bytes at a time
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
  return {p, nullptr, is_vector(p.bias, 0, 4), is_vector(p.out, p.ldo, element), vector_cross};
}

// max(value, least), but NaN stays.
__device__ inline float at_least(float value, float least) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(least));
  return result;
}

// How a warp's threads share a slice of 16 rows x 32 columns.
template <class T>
struct SliceThreads {
  static constexpr int kAcross = 32 / Pack<T>::kWidth;  // threads a row
  static constexpr int kRows = 32 / kAcross;            // rows at a time
  static constexpr int kPasses = 16 / kRows;
};

// One slice: made before its sums are in the warp's staging memory, so that what it reads from
// device memory is on its way meanwhile.
template <class T>
class Slice {
 public:
  using Threads = SliceThreads<T>;
  static constexpr int kWidth = Pack<T>::kWidth;

  // Columns from `limit` on belong to another tile.
  __device__ Slice(const EpilogueParams& e, std::int64_t first_row, int first_column, int limit)
      : e_(e), p_(e.linear) {
    const int lane = threadIdx.x % 32;
    across_ = lane % Threads::kAcross * kWidth;
    down_ = lane / Threads::kAcross;
    column_ = first_column + across_;
    count_ = min(kWidth, min(limit, p_.n) - column_);
    row_ = first_row + down_;
    cross_ = column_ >= p_.cross_begin && column_ + kWidth <= p_.cross_end;
    relu_ = column_ >= p_.relu_begin && column_ + kWidth <= p_.relu_end;
    whole_ = count_ == kWidth && (p_.bias == nullptr || e.vector_bias) &&
             (p_.out == nullptr || e.vector_out) && (!cross_ || e.vector_cross) &&
             (cross_ || column_ >= p_.cross_end || column_ + kWidth <= p_.cross_begin) &&
             (relu_ || column_ >= p_.relu_end || column_ + kWidth <= p_.relu_begin);
    if (whole_) read();
  }

  // Finishes and stores the slice; the rows' parts of the head are added to dots.
  __device__ void finish(const float* staging, int stride,
                         float (&dots)[Threads::kPasses]) const {
#pragma unroll
    for (int i = 0; i < Threads::kPasses; ++i) {
      const float* sums = staging + (down_ + i * Threads::kRows) * stride + across_;
      const std::int64_t row = row_ + i * Threads::kRows;
      if (row >= p_.rows) continue;
      if (whole_)
        dots[i] += finish_whole(row, i, sums);
      else
        dots[i] += finish_each(row, sums);
    }
  }

 private:
  __device__ void read() {
    if (cross_) {
      const T* x0 = static_cast<const T*>(p_.x0) + row_ * p_.ldx0 + column_ - p_.cross_begin;
      const T* xl = static_cast<const T*>(p_.xl) + row_ * p_.ldxl + column_ - p_.cross_begin;
#pragma unroll
      for (int i = 0; i < Threads::kPasses; ++i) {
        if (row_ + i * Threads::kRows >= p_.rows) continue;
        x0_[i] = *reinterpret_cast<const Pack<T>*>(x0 + i * Threads::kRows * p_.ldx0);
        xl_[i] = *reinterpret_cast<const Pack<T>*>(xl + i * Threads::kRows * p_.ldxl);
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; j += 4) {
      const float4 zeros{};
      const float4 ones{1.0f, 1.0f, 1.0f, 1.0f};
      bias_[j / 4] =
          p_.bias == nullptr ? zeros : __ldg(reinterpret_cast<const float4*>(p_.bias + column_ + j));
      if constexpr (sizeof(T) == 4)
        scale_ = e_.column_scale == nullptr
                     ? ones
                     : __ldg(reinterpret_cast<const float4*>(e_.column_scale + column_));
    }
  }

  __device__ float finish_whole(std::int64_t row, int pass, const float* sums) const {
    const float least = relu_ ? 0.0f : -INFINITY;
    float values[kWidth];
    Pack<T> stored;
#pragma unroll
    for (int j = 0; j < kWidth; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(sums + j);
      const float* sum = &four.x;
      const float* bias = &bias_[j / 4].x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float whole = sizeof(T) == 4 ? fmaf(sum[i], (&scale_.x)[i], bias[i]) : sum[i] + bias[i];
        values[j + i] = at_least(whole, least);
      }
    }
    if (cross_) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        values[i] = fmaf(to_float(x0_[pass].values[i]), values[i], to_float(xl_[pass].values[i]));
    }
    if (p_.out != nullptr) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) stored.values[i] = from_float<T>(values[i]);
      *reinterpret_cast<Pack<T>*>(static_cast<T*>(p_.out) + row * p_.ldo + column_) = stored;
    }
    float dot = 0.0f;
    if (column_ < p_.head_end && column_ + kWidth > p_.head_begin) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dot = fmaf(values[i], head(column_ + i), dot);
    }
    return dot;
  }

  // Any alignment, any ranges.
  __device__ float finish_each(std::int64_t row, const float* sums) const {
    float dot = 0.0f;
#pragma unroll 1
    for (int i = 0; i < count_; ++i) {
      const int c = column_ + i;
      const float scale = e_.column_scale == nullptr ? 1.0f : e_.column_scale[c];
      float value = fmaf(sums[i], scale, p_.bias == nullptr ? 0.0f : p_.bias[c]);
      if (c >= p_.relu_begin && c < p_.relu_end) value = at_least(value, 0.0f);
      if (c >= p_.cross_begin && c < p_.cross_end) {
        const int own = c - p_.cross_begin;
        const float x0 = to_float(static_cast<const T*>(p_.x0)[row * p_.ldx0 + own]);
        value = fmaf(x0, value, to_float(static_cast<const T*>(p_.xl)[row * p_.ldxl + own]));
      }
      dot = fmaf(value, head(c), dot);
      if (p_.out != nullptr) static_cast<T*>(p_.out)[row * p_.ldo + c] = from_float<T>(value);
    }
    return dot;
  }

  __device__ float head(int column) const {
    const bool inside = column >= p_.head_begin && column < p_.head_end;
    return inside ? __ldg(p_.head + column - p_.head_begin) : 0.0f;
  }

  const EpilogueParams& e_;
  const LinearParams& p_;
  std::int64_t row_;
  int across_, down_, column_, count_;
  bool whole_;  // all kWidth columns are treated alike, 16 bytes at a time
  bool cross_, relu_;
  Pack<T> x0_[Threads::kPasses];
  Pack<T> xl_[Threads::kPasses];
  float4 bias_[kWidth / 4];
  float4 scale_;
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
    const Slice<T> finishing(e, first_row, part * kTileN + slice * 32, (part + 1) * kTileN);
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
    finishing.finish(staging, kStagingStride, dots);
  }
  store_head<T>(e.linear, first_row, part, dots);
}

}  // namespace dpiframe
