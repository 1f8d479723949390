// What the operations' kernels share: places in rows, and groups of threads that share one result.
#pragma once

#include "kernels/elementwise/matrix.cuh"
#include "kernels/tensor/launch.h"

namespace dpiframe {

constexpr int kGroupThreads = 256;  // of a block whose groups share results

// A place of a launch as a row and a place in it.
struct RowPlace {
  std::int64_t row;
  std::uint32_t place;
};
__device__ inline RowPlace row_place(const RowRange& range, std::uint32_t place) {
  const std::uint32_t row = range.places_a_row.quotient(place);
  return {range.first + row, place - row * range.places_a_row.divisor};
}

// The place that this thread's group of kGroup threads computes.
template <int kGroup>
__device__ std::uint32_t group_place() {
  return blockIdx.x * (kGroupThreads / kGroup) + threadIdx.x / kGroup;
}

// The thread's values combined over its group of 1, 32 or all threads of the block, for all of
// them.
template <int kGroup, class T, class Combine>
__device__ T over_group(T value, const Combine& combine) {
  if constexpr (kGroup > 1)
    for (int width = 16; width > 0; width /= 2)
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, width));
  if constexpr (kGroup == kGroupThreads) {
    __shared__ T of_warps[kGroupThreads / 32];
    __syncthreads();  // until the values of a call before are read
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warps[0];
    for (int warp = 1; warp < kGroupThreads / 32; ++warp) value = combine(value, of_warps[warp]);
  }
  return value;
}

struct Sum {
  __device__ double operator()(double a, double b) const { return a + b; }
};

// How many threads share a result of `elements` elements: few elements, or elements that lie apart
// where neighbouring results lie side by side, are one thread's.
inline int group_size(int elements, bool lie_apart) {
  if (elements <= 32 || (lie_apart && elements <= 1024)) return 1;
  return elements <= 2048 ? 32 : kGroupThreads;
}

// Calls launch.template operator()<kGroup>(blocks) for the group's size.
template <class Launch>
void in_groups(int group, std::uint32_t places, const Launch& launch) {
  const unsigned blocks = blocks_of(places, kGroupThreads / group);
  switch (group) {
    case 1:
      return launch.template operator()<1>(blocks);
    case 32:
      return launch.template operator()<32>(blocks);
    default:
      return launch.template operator()<kGroupThreads>(blocks);
  }
}

}  // namespace dpiframe
