// A CTA on the host, for csrc/kernels/chain/product_chain.cuh: its threads, which meet where the
// GPU's do. The folder's ptx and cuda take the place of those of csrc.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <barrier>
#include <condition_variable>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

constexpr int kThreads = 384;
struct Index {
  unsigned x;
};
inline thread_local Index threadIdx;
inline Index blockIdx, gridDim;
inline std::barrier<> all_threads(kThreads), consumers(256);
inline std::barrier<>& own_warp() {
  static std::vector<std::unique_ptr<std::barrier<>>> warps = [] {
    std::vector<std::unique_ptr<std::barrier<>>> made;
    for (int i = 0; i < kThreads / 32; ++i) made.push_back(std::make_unique<std::barrier<>>(32));
    return made;
  }();
  return *warps[threadIdx.x / 32];
}
inline void __syncthreads() {
  all_threads.arrive_and_wait();
}
inline void __syncwarp() {
  own_warp().arrive_and_wait();
}
inline float of_threads[kThreads];
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  of_threads[threadIdx.x] = value;
  __syncwarp();
  const float other = of_threads[threadIdx.x ^ mask];
  __syncwarp();
  return other;
}
template <class T>
inline T __ldg(const T* from) {
  return *from;
}
inline std::uint32_t __float_as_uint(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __expf(float x) {
  return expf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline int min(int a, int b) {
  return a < b ? a : b;
}

namespace dpiframe {
alignas(1024) inline unsigned char shared[227 * 1024];
}  // namespace dpiframe
