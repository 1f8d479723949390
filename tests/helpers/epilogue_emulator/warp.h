// A warp on the host, for csrc/kernels/gemm/mapped/map_epilogue.cuh: 32 threads that meet where
// the GPU's lanes do. Included before it, with the host's part of the CUDA headers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#undef __device__
#undef __forceinline__
#undef __noinline__
#define __device__
#define __forceinline__ inline
#define __noinline__

inline thread_local struct {
  unsigned x;
} threadIdx;
inline std::barrier<> warp(32);
inline void __syncwarp() {
  warp.arrive_and_wait();
}
inline float shared_by_lanes[32];
inline float __shfl_sync(unsigned, float value, int lane) {
  shared_by_lanes[threadIdx.x] = value;
  __syncwarp();
  const float other = shared_by_lanes[lane];
  __syncwarp();
  return other;
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(threadIdx.x) ^ mask);
}
inline std::uint32_t __float_as_uint(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline unsigned long long __cvta_generic_to_shared(const void*) {
  return 0;
}
inline float __expf(float x) {
  return expf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}
// A prefetch has no effect that a program sees.
#define prefetch_l2 prefetch_of_the_gpu
#include "ptx/global_memory.cuh"
#undef prefetch_l2
namespace dpiframe {
inline void prefetch_l2(const void*) {}
}  // namespace dpiframe
