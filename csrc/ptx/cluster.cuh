// Clusters of CTAs: barriers among them, and each other's shared memory (DSMEM).
#pragma once

#include <cstdint>

namespace dpiframe {

__device__ inline std::uint32_t cluster_cta_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster arrive, then wait, whole warps at a time; orders no memory.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What a thread of the cluster wrote before is visible to all behind it.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
}

// The address in the cluster of what lies at `address` in CTA `rank`'s shared memory.
__device__ inline std::uint32_t mapa(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// DSMEM store of 16 bytes, aligned; visible to the other CTA behind cluster_sync.
__device__ inline void st_cluster(std::uint32_t cluster_target, const float4& values) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_target),
               "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w)
               : "memory");
}
// DSMEM stores, aligned to their bytes; the barrier, in the same CTA as the target, counts these,
// and who waits for it sees the values.
__device__ inline void st_async(std::uint32_t cluster_target, float value,
                                std::uint32_t cluster_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
          cluster_target),
      "f"(value), "r"(cluster_barrier)
      : "memory");
}
__device__ inline void st_async(std::uint32_t cluster_target, const uint2& words,
                                std::uint32_t cluster_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
          "r"(cluster_target),
      "r"(words.x), "r"(words.y), "r"(cluster_barrier)
      : "memory");
}

}  // namespace dpiframe
