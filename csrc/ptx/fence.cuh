// Fences. Each name states what it orders; use the narrowest, as a wider one waits for all of the
// GPU's memory.
#pragma once

namespace dpiframe {

// What this thread wrote to shared memory is visible to wgmma and TMA behind a barrier.
__device__ inline void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same of global memory; of both.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
// Initialised mbarriers are visible to the cluster and to TMA.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Orders this thread's accesses before it against those after it, for threads of the cluster.
__device__ inline void fence_acq_rel_cluster() {
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

}  // namespace dpiframe
