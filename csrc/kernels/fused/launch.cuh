// From a model's form to its kernel, and from that to a launch, for the one-kernel forward passes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/check.h"
#include "cuda/cuda_check.h"
#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/mlp/kernel.h"

namespace dpiframe {

// What a kernel with cross layers is compiled for.
template <class T, int kCrossTile, int kDeepTile>
struct ForwardTiles {};

template <class T, class KernelOf>
const void* forward_kernel_of(const ForwardCrossForm& form, const KernelOf& kernel_of) {
  const bool narrow = form.cross_tile == 104;
  switch (form.deep_tile) {
    case 104:
      return narrow ? kernel_of(ForwardTiles<T, 104, 104>{})
                    : kernel_of(ForwardTiles<T, 160, 104>{});
    case 128:
      return narrow ? kernel_of(ForwardTiles<T, 104, 128>{})
                    : kernel_of(ForwardTiles<T, 160, 128>{});
    default:
      DPIF_CHECK(false, "no kernel has quarters of ", form.deep_tile, " columns");
  }
}

// On the current device, for blocks that take `shared` bytes.
inline ForwardKernel load_forward_kernel(const void* function, int shared) {
  DPIF_CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       kForwardSharedLimit));
  return {function, shared};
}
// kernel_of: what is compiled for some ForwardTiles.
template <class KernelOf>
ForwardKernel load_forward_kernel(DataType type, const ForwardCrossForm& form, int shared,
                                  const KernelOf& kernel_of) {
  return load_forward_kernel(type == DataType::kHalf
                                 ? forward_kernel_of<__half>(form, kernel_of)
                                 : forward_kernel_of<__nv_bfloat16>(form, kernel_of),
                             shared);
}

template <class Arguments>
void launch_forward(const ForwardKernel& kernel, unsigned blocks, int threads,
                    const BatchMemory& inputs, const Arguments& arguments, cudaStream_t stream) {
  void* both[] = {const_cast<BatchMemory*>(&inputs), const_cast<Arguments*>(&arguments)};
  DPIF_CUDA_CHECK(cudaLaunchKernel(kernel.function, blocks, threads, both, kernel.shared, stream));
}

}  // namespace dpiframe
