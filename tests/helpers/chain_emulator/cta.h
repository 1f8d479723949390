// A cluster of CTAs on the host, for csrc/kernels/chain/product_chain.cuh: their threads, which
// meet where the GPU's do. The folder's ptx and cuda take the place of those of csrc.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <barrier>
#include <cmath>
#include <condition_variable>
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

constexpr int kThreads = 384, kMostCtas = 8;
struct Index {
  unsigned x;
};
inline thread_local Index threadIdx, blockIdx;
inline thread_local int cta;  // of the cluster
inline Index gridDim;

// Barriers of equal groups of threads.
class Barriers {
 public:
  Barriers(int groups, int threads) {
    for (int i = 0; i < groups; ++i) made_.push_back(std::make_unique<std::barrier<>>(threads));
  }
  void meet(int group) { made_[group]->arrive_and_wait(); }

 private:
  std::vector<std::unique_ptr<std::barrier<>>> made_;
};
inline Barriers warps(kMostCtas* kThreads / 32, 32), ctas(kMostCtas, kThreads),
    consumers(kMostCtas, 256);
inline std::unique_ptr<std::barrier<>> cluster;
inline void __syncthreads() {
  ctas.meet(cta);
}
inline void __syncwarp() {
  warps.meet((cta * kThreads + threadIdx.x) / 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  static T of_threads[kMostCtas][kThreads];
  of_threads[cta][threadIdx.x] = value;
  __syncwarp();
  const T other = of_threads[cta][threadIdx.x ^ mask];
  __syncwarp();
  return other;
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
inline int max(int a, int b) {
  return a < b ? b : a;
}

namespace dpiframe {
// That of a CTA begins at a multiple of kWindow, of which the kernel sees the first.
constexpr std::uint32_t kWindow = 256 * 1024;
alignas(1024) inline unsigned char shared[kMostCtas * kWindow];
}  // namespace dpiframe
