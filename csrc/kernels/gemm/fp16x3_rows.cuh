// FP16x3 emulation of a float32 product on float16 tensor cores, after Ootomo and Yokota,
// "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical
// peak performance" (arXiv 2203.03341): a float32 value is the sum of two float16, large + small,
// and three of the four products are summed in float32. Here: the operand x, in registers.
#pragma once

#include <cuda_fp16.h>

#include "kernels/gemm/pipeline.cuh"

namespace dpiframe {

__device__ inline std::uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// A power of two for each of two rows whose values four neighbouring threads share: `factor` brings
// a row's largest value into [2^14, 2^15), since float16 has few exponents.
struct RowPowers {
  float factor[2];
  float inverse[2];

  // The largest of the thread's values in either row.
  __device__ RowPowers(float first, float second) {
    const std::uint32_t tops = largest_tops(first, second);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t exponent = (r == 0 ? tops : tops << 16) & 0x7f800000;
      factor[r] = __uint_as_float(((127u + 14 + 127) << 23) - exponent);
      inverse[r] = __uint_as_float(exponent - (14u << 23));
    }
  }

 private:
  // The upper 16 bits (sign and exponent among them) of both rows' largest values, the first row's
  // on top, so that one shuffle exchanges both: shuffles are the cost here. At least 2^-111, so
  // that the factor is finite.
  __device__ static std::uint32_t largest_tops(float first, float second) {
    constexpr std::uint32_t kLeast = 16 << 7;
    std::uint32_t tops = __byte_perm(__float_as_uint(second), __float_as_uint(first), 0x7632);
    tops = __vmaxu2(tops, __shfl_xor_sync(0xffffffffu, tops, 1));
    tops = __vmaxu2(tops, __shfl_xor_sync(0xffffffffu, tops, 2));
    return __vmaxu2(tops, kLeast << 16 | kLeast);
  }
};

// Two values, each as large + small.
struct Fp16x3Pair {
  std::uint32_t large;
  std::uint32_t small;

  __device__ Fp16x3Pair(float a, float b) {
    const __half2 whole = __floats2half2_rn(a, b);
    const float2 taken = __half22float2(whole);
    large = as_bits(whole);
    small = as_bits(__floats2half2_rn(a - taken.x, b - taken.y));
  }
};

// A thread's part of a k tile, each row times its power of two, in wgmma's register layout of the
// first operand: for each of two k steps, the columns 8 t + 4 step + {0, 1} of rows r and r + 8,
// then those + {2, 3} (t = lane % 4, r = lane / 4). prepare_linear_weight orders the columns of w
// likewise.
struct Fp16x3Rows {
  std::uint32_t large[2][4];
  std::uint32_t small[2][4];
  float inverse[2];  // of rows r, r + 8

  __device__ Fp16x3Rows(const unsigned char* x, int lane) {
    float4 parts[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + r * 8;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int sixteen = (lane % 4 * 2 + step) ^ (row % 8);
        parts[r][step] = *reinterpret_cast<const float4*>(x + row * kKTileBytes + sixteen * 16);
      }
    }
    const RowPowers powers(largest(parts[0]), largest(parts[1]));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      inverse[r] = powers.inverse[r];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const float4& four = parts[r][step];
        split(four.x * powers.factor[r], four.y * powers.factor[r], step, r);
        split(four.z * powers.factor[r], four.w * powers.factor[r], step, r + 2);
      }
    }
  }

  // Keeps the compiler from reusing the registers while a wgmma may still read them.
  __device__ void settle() {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile("" : "+r"(large[i / 4][i % 4]), "+r"(small[i / 4][i % 4])::"memory");
  }

 private:
  // The largest of a thread's values in a row.
  __device__ static float largest(const float4 (&parts)[2]) {
    const auto of_four = [](const float4& four) {
      return fmaxf(fmaxf(fabsf(four.x), fabsf(four.y)), fmaxf(fabsf(four.z), fabsf(four.w)));
    };
    return fmaxf(of_four(parts[0]), of_four(parts[1]));
  }
  __device__ void split(float a, float b, int step, int place) {
    const Fp16x3Pair pair(a, b);
    large[step][place] = pair.large;
    small[step][place] = pair.small;
  }
};

}  // namespace dpiframe
