// A kernel of a cubin that was compiled while the process runs.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "cuda/cuda_check.h"
#include "cuda/programmatic_launch.cuh"

namespace dpiframe {

// Copies share the loaded code, which goes with the last of them.
class LoadedKernel {
 public:
  // On the current device; `shared_bytes`: dynamic shared memory of a block, at most.
  LoadedKernel(const std::string& cubin, const std::string& name, unsigned threads,
               std::size_t shared_bytes)
      : threads_(threads), shared_bytes_(shared_bytes) {
    cudaLibrary_t library = nullptr;
    DPIF_CUDA_CHECK(
        cudaLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    library_ = {library, [](cudaLibrary_t loaded) { DPIF_CUDA_WARN(cudaLibraryUnload(loaded)); }};
    cudaKernel_t kernel = nullptr;
    DPIF_CUDA_CHECK(cudaLibraryGetKernel(&kernel, library, name.c_str()));
    kernel_ = reinterpret_cast<const void*>(kernel);
    DPIF_CUDA_CHECK(cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)));
  }

  // Programmatic dependent launch (cuda/programmatic_launch.cuh) of clusters of `cluster` CTAs: the
  // kernel begins with await_predecessor. May be captured in a graph.
  template <class... Params>
  void launch_early(unsigned blocks, unsigned cluster, cudaStream_t stream,
                    const Params&... params) const {
    launch(blocks, cluster, shared_bytes_, true, stream, params...);
  }
  // With less shared memory, `early` or once the kernels ahead have ended.
  template <class... Params>
  void launch(unsigned blocks, unsigned cluster, std::size_t shared_bytes, bool early,
              cudaStream_t stream, const Params&... params) const {
    const KernelLaunch launch(blocks, threads_, shared_bytes, stream, cluster, early);
    void* values[] = {const_cast<void*>(static_cast<const void*>(&params))...};
    DPIF_CUDA_CHECK(cudaLaunchKernelExC(launch.config(), kernel_, values));
  }

 private:
  std::shared_ptr<std::remove_pointer_t<cudaLibrary_t>> library_;
  const void* kernel_ = nullptr;
  unsigned threads_;
  std::size_t shared_bytes_;
};

}  // namespace dpiframe
