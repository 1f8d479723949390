// Named barriers of a CTA (0 to 15; __syncthreads is 0) for some of its warps: kThreads threads
// sync or arrive in all.
#pragma once

namespace dpiframe {

template <int kThreads>
__device__ void named_barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <int kBarrier, int kThreads>
__device__ void named_barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ void named_barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

}  // namespace dpiframe
