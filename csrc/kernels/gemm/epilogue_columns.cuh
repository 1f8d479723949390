// The vectors of an epilogue that have one entry a column.
#pragma once

#include <cmath>

#include "cuda/conversions.cuh"
#include "kernels/gemm/epilogue_params.h"

namespace dpiframe {

// max(value, least) that passes NaN on.
__device__ inline float at_least(float value, float least) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(least));
  return result;
}

// A tile's columns of these vectors in shared memory, zero where the product has no such vector.
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

  // Starts the copies (cp.async) of columns [first, first + size) by `threads` threads, of which
  // this is `thread`. Before the first use call wait_copies() and a barrier of these threads.
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
  // Four bytes, or zero; `valid` is any valid address, given where nothing is read.
  __device__ static void copy(float4* target, int i, const float* source, bool inside,
                              const void* valid) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(target)) + 4 * i;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address),
                 "l"(inside ? source : valid), "r"(inside ? 4 : 0)
                 : "memory");
  }
};

}  // namespace dpiframe
