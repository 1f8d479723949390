// The Hopper (sm_90a) kernel that takes large batches of DeviceForwardCross's models.
#pragma once

#include "kernels/fused/cross_persistent/smem_layout.h"
#include "kernels/fused/mlp/kernel.h"

namespace dpiframe {

// Loads the kernel for a model on the current device. type: half or bfloat16.
ForwardKernel forward_tall_kernel_for(DataType type, const ForwardTallArguments& arguments);

// blocks: as many as the GPU runs at a time, even.
void forward_tall_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                         const ForwardTallArguments& arguments, int blocks, cudaStream_t stream);

}  // namespace dpiframe
