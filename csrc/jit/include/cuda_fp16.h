// For kernels that are compiled at load: CUDA's float16, as much of it as they use.
#pragma once

struct __half {
  unsigned short bits;
};
struct alignas(4) __half2 {
  __half x;
  __half y;
};

__device__ inline float __half2float(__half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ inline __half __float2half_rn(float value) {
  __half result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
__device__ inline __half2 __floats2half2_rn(float x, float y) {
  __half2 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<unsigned&>(pair)) : "f"(y), "f"(x));
  return pair;
}
__device__ inline float2 __half22float2(__half2 pair) {
  return make_float2(__half2float(pair.x), __half2float(pair.y));
}
