// The Hopper (sm_90a) kernel behind DeviceForwardSplit.
#pragma once

#include "kernels/fused/cross_fp16x3/smem_layout.h"
#include "kernels/fused/mlp/kernel.h"

namespace dpiframe {

// Loads the kernel for a model on the current device; each_thread_leaves: the form of it that
// racecheck can follow (forward_split_stream.cuh).
ForwardKernel forward_split_kernel_for(const ForwardSplitArguments& arguments,
                                       bool each_thread_leaves);

// By at most `blocks` blocks.
void forward_split_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                          const ForwardSplitArguments& arguments, int blocks, cudaStream_t stream);

}  // namespace dpiframe
