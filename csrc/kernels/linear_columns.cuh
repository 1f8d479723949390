// What the epilogue of a product needs to know about its columns.
#pragma once

#include "common/numbers.cuh"
#include "kernels/linear.h"

namespace dpiframe {

// LinearParams and what the launcher found out about them.
struct EpilogueParams {
  LinearParams linear;
  const float* column_scale;  // [n] or null: a factor for the sums, before the bias
  bool vectors;               // four columns at a time can be read, treated alike and written
};

inline bool are_quads(const void* pointer, std::int64_t stride, std::size_t element) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (4 * element) == 0 && stride % 4 == 0;
}

inline EpilogueParams epilogue_params(const LinearParams& p, std::size_t element) {
  const bool cross = p.cross_begin < p.cross_end;
  const bool vectors =
      p.n % 4 == 0 && are_quads(p.out, p.ldo, element) &&
      (!cross || (are_quads(p.x0, p.ldx0, element) && are_quads(p.xl, p.ldxl, element) &&
                  p.cross_begin % 4 == 0 && p.cross_end % 4 == 0));
  return {p, nullptr, vectors};
}

// max(value, least), but NaN stays.
__device__ inline float at_least(float value, float least) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(least));
  return result;
}

// A tile's piece of the vectors that have one entry a column, in shared memory, zero where there is
// nothing.
struct ColumnVectors {
  static constexpr int kVectors = 4;

  float4* bias;
  float4* scale;
  float4* head;
  float4* least;  // 0 under ReLU, elsewhere -inf

  __device__ ColumnVectors(float* memory, int size)
      : bias(reinterpret_cast<float4*>(memory)),
        scale(bias + size / 4),
        head(scale + size / 4),
        least(head + size / 4) {}

  // Starts the copies of columns [first, first + size) by `threads` threads, of which this is
  // `thread`. wait_copies() and a barrier among them come before the first use.
  __device__ void start_copies(const EpilogueParams& e, int first, int size, int thread,
                               int threads) const {
    const LinearParams& p = e.linear;
    for (int i = thread; i < size; i += threads) {
      const int c = first + i;
      const bool in_head = p.head_partial != nullptr && c >= p.head_begin && c < p.head_end;
      copy(bias, i, p.bias + c, p.bias != nullptr && c < p.n, p.w);
      copy(head, i, p.head + c - p.head_begin, in_head && c < p.n, p.w);
      if (e.column_scale != nullptr) copy(scale, i, e.column_scale + c, c < p.n, p.w);
      reinterpret_cast<float*>(least)[i] = c >= p.relu_begin && c < p.relu_end ? 0.0f : -INFINITY;
    }
  }
  __device__ static void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

 private:
  // Four bytes, or zero; `valid` is an address that can stand for one that is not read.
  __device__ static void copy(float4* target, int i, const float* source, bool inside,
                              const void* valid) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(target)) + 4 * i;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address),
                 "l"(inside ? source : valid), "r"(inside ? 4 : 0)
                 : "memory");
  }
};

// Asks for x0 and xl of a warp's 16 rows to come to L2.
template <class T, int kTileN>
__device__ void prefetch_cross(const LinearParams& p, std::int64_t first_row, int first_column) {
  constexpr int kLine = 128 / sizeof(T);
  constexpr int kLines = kTileN / kLine + 1;
  const int begin = max(first_column, p.cross_begin);
  const int end = min(first_column + kTileN, p.cross_end);
  for (int i = threadIdx.x % 32; i < 16 * kLines; i += 32) {
    const std::int64_t row = first_row + i / kLines;
    const int column = begin + i % kLines * kLine;
    if (row >= p.rows || column >= end) continue;
    const T* x0 = static_cast<const T*>(p.x0) + row * p.ldx0 + column - p.cross_begin;
    const T* xl = static_cast<const T*>(p.xl) + row * p.ldxl + column - p.cross_begin;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(x0));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(xl));
  }
}

}  // namespace dpiframe
