// A kernel that only waits, and one that cannot be launched; delay.h.
#include "cuda/cuda_check.h"
#include "kernels/testing/delay.h"

namespace dpiframe {
namespace {

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void delay_kernel(unsigned nanoseconds) {
  const unsigned long long end = now() + nanoseconds;
  while (now() < end) __nanosleep(100);
}

}  // namespace

void delay(unsigned nanoseconds, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

void refused_launch(cudaStream_t stream) {
  delay_kernel<<<1, 4096, 0, stream>>>(0);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
