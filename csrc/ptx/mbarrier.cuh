// Hopper: barriers in shared memory and the copies that complete on them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ptx/wgmma.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_arrive(std::uint32_t barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times)
               : "memory");
}
__device__ inline void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(std::uint32_t barrier, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void fetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void copy_box(std::uint32_t target, const CUtensorMap* map, int column, int row,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(target),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
