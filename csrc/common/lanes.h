// Warp primitives for code that also runs on the host: a thread group is a warp on a GPU and one
// thread on a host, where the same code is tested. All lanes of the group call the same functions
// with the same arguments.
#pragma once

#include <cstdint>

#include "common/host_device.h"

// Loops that a GPU unrolls, to keep what they hold in registers; and loops whose body is too large.
#ifdef __CUDA_ARCH__
#define DPIF_UNROLL _Pragma("unroll")
#define DPIF_NO_UNROLL _Pragma("unroll 1")
#else
#define DPIF_UNROLL
#define DPIF_NO_UNROLL
#endif

namespace dpiframe::lanes {

#ifdef __CUDA_ARCH__
constexpr int kCount = 32;
#else
constexpr int kCount = 1;
#endif

// The lane's number, 0 to kCount - 1.
DPIF_HOST_DEVICE int index() {
#ifdef __CUDA_ARCH__
  return static_cast<int>(threadIdx.x % kCount);
#else
  return 0;
#endif
}

// Writes before it are visible to all lanes behind it.
DPIF_HOST_DEVICE void sync() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
}

// Whether the predicate holds for all lanes.
DPIF_HOST_DEVICE bool all(bool one) {
#ifdef __CUDA_ARCH__
  return __all_sync(0xffffffffu, one) != 0;
#else
  return one;
#endif
}

// The first lane for which the predicate holds; -1: none.
DPIF_HOST_DEVICE int first(bool one) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(__ballot_sync(0xffffffffu, one))) - 1;
#else
  return one ? 0 : -1;
#endif
}

// A number of lanes: those before this one, and all.
struct Count {
  int before;
  int all;
};

// The lanes for which the predicate holds.
DPIF_HOST_DEVICE Count count(bool one) {
#ifdef __CUDA_ARCH__
  const unsigned mask = __ballot_sync(0xffffffffu, one);
  return {__popc(mask & ((1u << index()) - 1)), __popc(mask)};
#else
  return {0, one ? 1 : 0};
#endif
}

// The lanes that have the same value as this one.
DPIF_HOST_DEVICE Count count_equal(unsigned value) {
#ifdef __CUDA_ARCH__
  const unsigned mask = __match_any_sync(0xffffffffu, value);
  return {__popc(mask & ((1u << index()) - 1)), __popc(mask)};
#else
  (void)value;
  return {0, 1};
#endif
}

// The value that `lane` has.
DPIF_HOST_DEVICE int shuffle(int value, int lane) {
#ifdef __CUDA_ARCH__
  return __shfl_sync(0xffffffffu, value, lane);
#else
  (void)lane;
  return value;
#endif
}

// The sum of the values of the lanes before this one (an exclusive scan), and of all.
struct PrefixSum {
  int before;
  int all;
};

DPIF_HOST_DEVICE PrefixSum prefix_sum(int value) {
#ifdef __CUDA_ARCH__
  int sum = value;
  DPIF_UNROLL
  for (int step = 1; step < kCount; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, sum, step);
    if (index() >= step) sum += before;
  }
  return {sum - value, __shfl_sync(0xffffffffu, sum, kCount - 1)};
#else
  return {0, value};
#endif
}

// The same of 64 bits, modulo 2^64.
struct WidePrefixSum {
  std::uint64_t before;
  std::uint64_t all;
};

DPIF_HOST_DEVICE WidePrefixSum prefix_sum(std::uint64_t value) {
#ifdef __CUDA_ARCH__
  unsigned long long sum = value;
  DPIF_UNROLL
  for (int step = 1; step < kCount; step *= 2) {
    const unsigned long long before = __shfl_up_sync(0xffffffffu, sum, step);
    if (index() >= step) sum += before;
  }
  return {sum - value, __shfl_sync(0xffffffffu, sum, kCount - 1)};
#else
  return {0, value};
#endif
}

// The last lane whose `before` (a prefix sum) is at most i: binary search.
DPIF_HOST_DEVICE int owner(int before, int i) {
  int lane = 0;
  DPIF_UNROLL
  for (int step = kCount / 2; step > 0; step /= 2)
    if (shuffle(before, lane + step) <= i) lane += step;
  return lane;
}

}  // namespace dpiframe::lanes
