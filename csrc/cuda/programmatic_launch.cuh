// Programmatic dependent launch: the next kernel of a stream is launched while this one still runs,
// sets itself up, and waits until the kernels before it have ended and their writes are visible.
// GPUs older than Hopper launch it after this one.
#pragma once

#ifndef __CUDACC_RTC__
#include "cuda/cuda_check.h"
#endif

namespace dpiframe {

#ifdef __CUDACC__

__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void await_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

#ifndef __CUDACC_RTC__

// Launches a kernel that begins with await_predecessor.
template <class... Args>
void launch_early(void (*kernel)(Args...), unsigned blocks, unsigned threads, std::size_t shared,
                  cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  DPIF_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

#endif

}  // namespace dpiframe
