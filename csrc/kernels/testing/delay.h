// For tests alone: kernels that put a plan to the test.
#pragma once

#include <cuda_runtime_api.h>

namespace dpiframe {

// Keeps the stream busy for so many nanoseconds, so that a missing wait shows.
void delay(unsigned nanoseconds, cudaStream_t stream);

// A launch that CUDA refuses; throws what any refused launch throws.
void refused_launch(cudaStream_t stream);

}  // namespace dpiframe
