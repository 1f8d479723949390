// mbarrier: barriers in shared memory that count arrivals of threads and bytes of asynchronous
// copies. Barriers are 8 bytes, given by shared-memory address; a wait names the phase's parity.
#pragma once

#include <cstdint>

namespace dpiframe {

__device__ inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void mbarrier_arrive(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
               : "memory");
}
// `cluster_barrier`: of any CTA of the cluster (mapa). Orders no memory.
__device__ inline void mbarrier_arrive_remote(std::uint32_t cluster_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier)
               : "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_wait(std::uint32_t barrier, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Acquires what the arriving threads of the cluster released (fence_acq_rel_cluster).
__device__ inline void mbarrier_wait_acquire_cluster(std::uint32_t barrier, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace dpiframe
