// The Hopper (sm_90a) kernel behind DeviceForwardSplit.
#pragma once

#include "kernels/forward_hopper.h"
#include "kernels/forward_split_layout.h"

namespace dpiframe {

// Loads the kernel for a model on the current device; each_thread_leaves: the form of it that
// racecheck can follow (forward_split_stream.cuh).
ForwardKernel forward_split_kernel_for(const ForwardSplitArguments& arguments,
                                       bool each_thread_leaves);

// By at most `blocks` blocks.
void forward_split_hopper(const ForwardKernel& kernel, std::int64_t rows, const RunInputs& inputs,
                          const ForwardSplitArguments& arguments, int blocks, cudaStream_t stream);

}  // namespace dpiframe
