// Hopper: the rows of out, x0 and xl move between device memory and a warp of the epilogue by TMA,
// in boxes of 16 rows x 128 bytes, so that memory and L2 see whole lines. A warp has two slots of
// two boxes: x0, which the results overwrite, and xl.
#pragma once

#include <cuda.h>

#include "kernels/gemm/sm90_linear.h"
#include "ptx/fence.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"

namespace dpiframe {

constexpr int kBoxBytes = 16 * 128;
constexpr int kSlotBytes = 2 * kBoxBytes;  // where there is no cross, kBoxBytes

class WarpBoxes {
 public:
  // memory: two slots of `slot_bytes`, aligned to 1,024 bytes; barriers: 16 bytes.
  __device__ WarpBoxes(const EpilogueMaps& maps, unsigned char* memory, int slot_bytes,
                       std::uint32_t barriers)
      : maps_(maps), memory_(memory), slot_bytes_(slot_bytes), barriers_(barriers) {}

  // Once, by one thread of each warp.
  __device__ void init() const {
    mbarrier_init(barriers_, 1);
    mbarrier_init(barriers_ + 8, 1);
    fence_mbarrier_init();
  }

  // Starts the loads of x0 and, if `both`, xl from `column`, `row` on into a slot whose results
  // have been stored.
  __device__ void start_read(int slot, int column, std::int64_t row, bool both) const {
    fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      tma_store_wait_read<0>();
      const std::uint32_t target = smem_address(memory_) + slot * slot_bytes_;
      const std::uint32_t barrier = barriers_ + slot * 8;
      mbarrier_arrive_expect_tx(barrier, both ? 2 * kBoxBytes : kBoxBytes);
      tma_load_2d(target, &maps_.x0, column, static_cast<int>(row), barrier);
      if (both) tma_load_2d(target + kBoxBytes, &maps_.xl, column, static_cast<int>(row), barrier);
    }
    __syncwarp();
  }
  __device__ void wait_read(int slot) {
    mbarrier_wait(barriers_ + slot * 8, phases_ >> slot & 1);
    phases_ ^= 1 << slot;
  }
  // Where nothing is loaded: waits until the slot can be written again. For a tile's first box that
  // is when all stores have read their source, for a later one when all but the last have.
  __device__ void wait_free(bool first) const {
    if (threadIdx.x % 32 == 0) {
      if (first)
        tma_store_wait_read<0>();
      else
        tma_store_wait_read<1>();
    }
    __syncwarp();
  }
  __device__ void store(int slot, int column, std::int64_t row) const {
    fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      tma_store_2d(&maps_.out, column, static_cast<int>(row),
                   smem_address(memory_) + slot * slot_bytes_);
    }
  }
  // Before the CTA ends, for its memory ends with it. That the results are in device memory needs
  // no wait: who reads them waits for the whole grid.
  __device__ static void finish_stores() {
    if (threadIdx.x % 32 == 0) tma_store_wait_read<0>();
  }

  // The warp's slots as plain memory, for what uses no boxes: 2 x slot_bytes.
  __device__ void* memory() const { return memory_; }
  // Where `bytes` into the row lane / 4 + 8 below lies, under the 128-byte swizzle.
  __device__ unsigned char* place(int slot, int bytes, int below) const {
    const int row = threadIdx.x % 32 / 4;
    return memory_ + slot * slot_bytes_ + (row + below * 8) * 128 + (bytes ^ row * 16);
  }

 private:
  const EpilogueMaps& maps_;
  unsigned char* memory_;
  int slot_bytes_;
  std::uint32_t barriers_;
  std::uint32_t phases_ = 0;
};

}  // namespace dpiframe
