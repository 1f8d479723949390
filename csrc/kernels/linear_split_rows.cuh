// Rows of x, float32, as two float16 of each value: what linear_hopper_split.cu multiplies.
#pragma once

#include <cuda_fp16.h>

#include "kernels/linear_pipeline.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// The power of two that brings `largest` into [2^14, 2^15), and its inverse.
struct PowerOfTwo {
  __device__ explicit PowerOfTwo(float largest) {
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 16);
    factor = __uint_as_float((127 + 14 + 127 - exponent) << 23);
    inverse = __uint_as_float((exponent - 14) << 23);
  }
  float factor;
  float inverse;
};

__device__ inline std::uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// A thread's part of a chunk in wgmma's layout of a: for each of two steps, the columns
// 8 t + 4 step + {0, 1} of rows r and r + 8, then those + {2, 3} (t = lane % 4, r = lane / 4). That
// w has its columns in the same order is prepare_linear_weight's affair.
struct SplitRows {
  std::uint32_t large[2][4];
  std::uint32_t small[2][4];
  float inverse[2];  // of rows r, r + 8

  __device__ SplitRows(const unsigned char* x, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + r * 8;
      float4 parts[2];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int sixteen = (lane % 4 * 2 + step) ^ (row % 8);
        parts[step] = *reinterpret_cast<const float4*>(x + row * kChunkBytes + sixteen * 16);
      }
      const PowerOfTwo power(largest(parts));
      inverse[r] = power.inverse;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        split(parts[step].x * power.factor, parts[step].y * power.factor, step, r);
        split(parts[step].z * power.factor, parts[step].w * power.factor, step, r + 2);
      }
    }
  }

  // Keeps the registers from being used anew while a wgmma may still read them.
  __device__ void settle() {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile("" : "+r"(large[i / 4][i % 4]), "+r"(small[i / 4][i % 4])::"memory");
  }

 private:
  // Over the four threads that share a row.
  __device__ static float largest(const float4 (&parts)[2]) {
    float value = 0.0f;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      value = fmaxf(value, fmaxf(fabsf(parts[step].x), fabsf(parts[step].y)));
      value = fmaxf(value, fmaxf(fabsf(parts[step].z), fabsf(parts[step].w)));
    }
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
  }
  __device__ void split(float a, float b, int step, int place) {
    const __half2 whole = __floats2half2_rn(a, b);
    const float2 taken = __half22float2(whole);
    large[step][place] = as_bits(whole);
    small[step][place] = as_bits(__floats2half2_rn(a - taken.x, b - taken.y));
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
