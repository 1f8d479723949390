// The lanes that run one piece of code together: a warp on a GPU; a single thread on the host,
// where the same code runs and is tested. All lanes call the same functions with the same
// arguments.
#pragma once

#include "common/host_device.h"

namespace dpiframe::lanes {

#ifdef __CUDA_ARCH__
constexpr int kCount = 32;
#else
constexpr int kCount = 1;
#endif

// This lane, 0 to kCount - 1.
DPIF_HOST_DEVICE int index() {
#ifdef __CUDA_ARCH__
  return static_cast<int>(threadIdx.x % kCount);
#else
  return 0;
#endif
}

// Makes what a lane wrote before visible to all lanes after.
DPIF_HOST_DEVICE void sync() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
}

// Whether `one` is true in all lanes.
DPIF_HOST_DEVICE bool all(bool one) {
#ifdef __CUDA_ARCH__
  return __all_sync(0xffffffffu, one) != 0;
#else
  return one;
#endif
}

}  // namespace dpiframe::lanes
