// A fused forward kernel with a model on the GPU, and its launch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "cuda/cuda_check.h"
#include "cuda/device_buffer.h"
#include "kernels/batch_memory.h"
#include "kernels/fused/layout.h"

namespace dpiframe {

// What is compiled for a model's tiles.
struct FusedKernel {
  const void* function;
  int threads;       // of a CTA
  int tile_samples;  // of a cluster
  int smem_bytes;    // that a CTA takes
};

// Params: the kernel's arguments beside the batch.
template <class Params>
class DeviceFusedKernel {
 public:
  // On the current device; `params` points into `memory`. At most `max_ctas` CTAs are launched,
  // which is for persistent kernels.
  DeviceFusedKernel(const FusedKernel& kernel, const Params& params, DeviceArrays memory,
                    int max_ctas = std::numeric_limits<int>::max())
      : kernel_(kernel), params_(params), memory_(std::move(memory)), max_ctas_(max_ctas) {
    DPIF_CUDA_CHECK(cudaFuncSetAttribute(
        kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSmemBytes));
  }

  // Enqueues the scores of the first `samples` samples, or as many as the batch has; never
  // synchronises, never allocates, may be captured in a graph. One launch; not for two streams at a
  // time.
  void run(std::int64_t samples, const BatchMemory& inputs, cudaStream_t stream) const {
    if (samples == 0) return;
    const std::int64_t tiles = (samples + kernel_.tile_samples - 1) / kernel_.tile_samples;
    const auto ctas = static_cast<unsigned>(std::min<std::int64_t>(2 * tiles, max_ctas_));
    void* arguments[] = {const_cast<BatchMemory*>(&inputs), const_cast<Params*>(&params_)};
    DPIF_CUDA_CHECK(cudaLaunchKernel(kernel_.function, ctas, kernel_.threads, arguments,
                                     kernel_.smem_bytes, stream));
  }

  const Params& params() const { return params_; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  FusedKernel kernel_;
  Params params_;
  DeviceArrays memory_;
  int max_ctas_;
};

}  // namespace dpiframe
