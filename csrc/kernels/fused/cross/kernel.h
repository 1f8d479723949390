// The Hopper (sm_90a) kernel behind DeviceForwardCross.
#pragma once

#include "common/precision.h"
#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/mlp/kernel.h"

namespace dpiframe {

// Loads the kernel for a model on the current device. type: half or bfloat16.
ForwardKernel forward_cross_kernel_for(DataType type, const ForwardCrossArguments& arguments);

void forward_cross_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                          const ForwardCrossArguments& arguments, cudaStream_t stream);

}  // namespace dpiframe
