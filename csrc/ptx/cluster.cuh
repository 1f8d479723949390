// Two blocks of a cluster: barriers, and each other's shared memory.
#pragma once

#include "ptx/mbarrier.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of both blocks arrives, then waits; orders no memory. Whole warps only.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Both, and what either block did before is seen by the other behind it.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
}

__device__ inline void block_barrier() {  // of the threads that gather and multiply
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// What this thread wrote to shared memory may be read by wgmma and by bulk copies, after a barrier.
// Of shared memory alone: in its general form the fence waits for all of the GPU's memory.
__device__ inline void publish_to_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Where `address` of this block's shared memory lies in block `rank`.
__device__ inline std::uint32_t address_in(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// To either block; the barrier there counts the bytes, and who waits for it sees the value.
__device__ inline void store_in(std::uint32_t mapped, float value, std::uint32_t mapped_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
          mapped),
      "f"(value), "r"(mapped_barrier)
      : "memory");
}

// At a barrier of either block.
__device__ inline void arrive_in(std::uint32_t mapped_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(mapped_barrier)
               : "memory");
}

// Bulk copies; the barrier counts their bytes.
__device__ inline void copy_to_peer(std::uint32_t mapped_target, std::uint32_t source, int bytes,
                                    std::uint32_t mapped_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(mapped_target),
      "r"(source), "r"(bytes), "r"(mapped_barrier)
      : "memory");
}
__device__ inline void copy_in(std::uint32_t target, const void* source, int bytes,
                               std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline void store_words(std::uint32_t address, const uint4& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline uint4 load_words(std::uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline void store_word(std::uint32_t address, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ inline void store_short(std::uint32_t address, unsigned short word) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(word) : "memory");
}
__device__ inline std::uint32_t load_word(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ inline float load_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
