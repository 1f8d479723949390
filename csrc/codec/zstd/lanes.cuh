// What the zstd decoder asks of the threads that share a frame, besides common/lanes.h. All of
// them ask together.
#pragma once

#include "common/lanes.h"

// Loops of which a GPU keeps what they hold in registers, and one whose body is large.
#ifdef __CUDA_ARCH__
#define DPIF_UNROLL _Pragma("unroll")
#define DPIF_NO_UNROLL _Pragma("unroll 1")
#else
#define DPIF_UNROLL
#define DPIF_NO_UNROLL
#endif

namespace dpiframe::zstd {

// The first for which it is so; -1: none.
DPIF_HOST_DEVICE int first_lane(bool one) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(__ballot_sync(0xffffffffu, one))) - 1;
#else
  return one ? 0 : -1;
#endif
}

// How many before this one it is so for, and for how many in all.
struct LaneCount {
  int before;
  int all;
};

DPIF_HOST_DEVICE LaneCount count_lanes(bool one) {
#ifdef __CUDA_ARCH__
  const unsigned lanes = __ballot_sync(0xffffffffu, one);
  return {__popc(lanes & ((1u << lanes::index()) - 1)), __popc(lanes)};
#else
  return {0, one ? 1 : 0};
#endif
}

// Of those whose value is the same: how many are before this one, and how many there are.
DPIF_HOST_DEVICE LaneCount count_equals(unsigned value) {
#ifdef __CUDA_ARCH__
  const unsigned lanes = __match_any_sync(0xffffffffu, value);
  return {__popc(lanes & ((1u << lanes::index()) - 1)), __popc(lanes)};
#else
  (void)value;
  return {0, 1};
#endif
}

// The value that `lane` has.
DPIF_HOST_DEVICE int from_lane(int value, int lane) {
#ifdef __CUDA_ARCH__
  return __shfl_sync(0xffffffffu, value, lane);
#else
  (void)lane;
  return value;
#endif
}

// The sum of the values before this one's, and of all.
struct LaneSum {
  int before;
  int all;
};

DPIF_HOST_DEVICE LaneSum sum_lanes(int value) {
#ifdef __CUDA_ARCH__
  int sum = value;
  DPIF_UNROLL
  for (int step = 1; step < lanes::kCount; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, sum, step);
    if (lanes::index() >= step) sum += before;
  }
  return {sum - value, __shfl_sync(0xffffffffu, sum, lanes::kCount - 1)};
#else
  return {0, value};
#endif
}

}  // namespace dpiframe::zstd
