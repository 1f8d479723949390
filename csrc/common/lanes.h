// The threads that work on one thing together: a warp on a GPU; one thread on a host, where the
// same code runs and is tested. All of them call the same functions with the same arguments.
#pragma once

#include "common/host_device.h"

namespace dpiframe::lanes {

#ifdef __CUDA_ARCH__
constexpr int kCount = 32;
#else
constexpr int kCount = 1;
#endif

// Which one this is, 0 to kCount - 1.
DPIF_HOST_DEVICE int index() {
#ifdef __CUDA_ARCH__
  return static_cast<int>(threadIdx.x % kCount);
#else
  return 0;
#endif
}

// What one of them wrote before, all see behind it.
DPIF_HOST_DEVICE void sync() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
}

// Whether it is so for all of them.
DPIF_HOST_DEVICE bool all(bool one) {
#ifdef __CUDA_ARCH__
  return __all_sync(0xffffffffu, one) != 0;
#else
  return one;
#endif
}

}  // namespace dpiframe::lanes
