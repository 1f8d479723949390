// TMA: bulk copies by the copy engine, each asked for by one thread. The completing mbarrier counts
// the bytes (mbarrier_arrive_expect_tx). Addresses and sizes are multiples of 16 bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace dpiframe {

// Global to this CTA's shared memory.
__device__ inline void tma_bulk_load(std::uint32_t target, const void* source, int bytes,
                                     std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// Shared memory to a CTA of the cluster (DSMEM); target and barrier are mapped there (mapa).
__device__ inline void tma_bulk_copy_to_cta(std::uint32_t cluster_target, std::uint32_t source,
                                            int bytes, std::uint32_t cluster_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(cluster_target),
      "r"(source), "r"(bytes), "r"(cluster_barrier)
      : "memory");
}

// The box of a tensor map that begins at `column`, `row`.
__device__ inline void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void tma_load_2d(std::uint32_t target, const CUtensorMap* map, int column,
                                   int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(target),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ inline void tma_load_3d(std::uint32_t target, const CUtensorMap* map, int column,
                                   int matrix, int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
      "l"(map), "r"(column), "r"(matrix), "r"(row), "r"(barrier)
      : "memory");
}
// A bulk group of its own.
__device__ inline void tma_store_2d(const CUtensorMap* map, int column, int row,
                                    std::uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(column), "r"(row), "r"(source)
      : "memory");
}
// Until at most kPending of the thread's stores are unfinished; _read: still read shared memory.
template <int kPending>
__device__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace dpiframe
