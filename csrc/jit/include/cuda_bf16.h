// For kernels that are compiled at load: CUDA's bfloat16, as much of it as they use.
#pragma once

struct __nv_bfloat16 {
  unsigned short bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x;
  __nv_bfloat16 y;
};

__device__ inline float __bfloat162float(__nv_bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  __nv_bfloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
__device__ inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  __nv_bfloat162 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<unsigned&>(pair)) : "f"(y), "f"(x));
  return pair;
}
