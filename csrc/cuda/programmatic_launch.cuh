// Programmatic dependent launch: the next kernel of a stream is launched while this one still runs,
// sets itself up, and waits until the kernels before it have ended and their writes are visible.
// GPUs older than Hopper launch it after this one.
#pragma once

#ifndef __CUDACC_RTC__
#include "cuda/cuda_check.h"
#include "cuda/racecheck.h"
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

// The configuration of a launch of clusters of `cluster` CTAs (1: none) of a kernel that begins
// with await_predecessor; `early`: its CTAs may be placed while the kernel ahead runs.
class KernelLaunch {
 public:
  KernelLaunch(unsigned blocks, unsigned threads, std::size_t shared, cudaStream_t stream,
               unsigned cluster = 1, bool early = true) {
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = early && !kRacecheck;
    attributes_[1].id = cudaLaunchAttributeClusterDimension;
    attributes_[1].val.clusterDim.x = cluster;
    attributes_[1].val.clusterDim.y = attributes_[1].val.clusterDim.z = 1;
    config_.gridDim = blocks;
    config_.blockDim = threads;
    config_.dynamicSmemBytes = shared;
    config_.stream = stream;
    config_.attrs = attributes_;
    config_.numAttrs = cluster == 1 ? 1 : 2;
  }
  KernelLaunch(const KernelLaunch&) = delete;
  KernelLaunch& operator=(const KernelLaunch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

// Launches a kernel that begins with await_predecessor.
template <class... Args>
void launch_early(void (*kernel)(Args...), unsigned blocks, unsigned threads, std::size_t shared,
                  cudaStream_t stream, const Args&... args) {
  const KernelLaunch launch(blocks, threads, shared, stream);
  DPIF_CUDA_CHECK(cudaLaunchKernelEx(launch.config(), kernel, args...));
}

#endif

}  // namespace dpiframe
