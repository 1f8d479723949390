// The Hopper (sm_90a) kernel behind DeviceForward.
#pragma once

#include <cuda_runtime_api.h>

#include "common/precision.h"
#include "kernels/batch_memory.h"
#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

// What all launches of a model have in common.
struct ForwardKernel {
  const void* function = nullptr;
  int shared = 0;  // bytes that a block takes
};

// Loads the kernel for a model on the current device. type: half or bfloat16.
ForwardKernel forward_kernel_for(DataType type, const ForwardArguments& arguments);

void forward_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                    const ForwardArguments& arguments, cudaStream_t stream);

}  // namespace dpiframe
