// Products that follow one another in one persistent kernel; product_sequence.h says what for.
//
// CTAs take tiles of all products from one counter, in an order in which a tile comes after those
// that it needs: block by block of rows, product by product. The producer thread takes a CTA's next
// tile, waits until the rows of x, x0 and xl are stored, tells the consumers of the tile and loads
// it. So a CTA waits for the rows that it needs, not for a whole product, and loads while the tile
// before is finished. The tile counted lowest among those in work needs none that is not done:
// whatever part of the CTAs is on the GPU, it goes on.
//
// Rows are handed over through memory: a warp's TMA stores complete, then it counts itself at gpu
// scope; the producer reads the count, and orders the loads by TMA behind that.
#pragma once

#include "kernels/gemm/sequence/sequence_params.h"
#include "kernels/gemm/sm90_epilogue.cuh"
#include "kernels/gemm/sm90_linear.cuh"
#include "ptx/global_memory.cuh"

namespace dpiframe {

// A CTA's tiles on their way from the producer to the consumers.
class TileQueue {
 public:
  static constexpr int kSlots = 4;
  static constexpr int kNone = -1;
  struct Tile {
    int task;  // kNone: there are no more
    int row_tile;
    int part;
  };
  struct Memory {
    std::uint64_t full[kSlots];
    std::uint64_t empty[kSlots];
    Tile tiles[kSlots];
  };

  __device__ explicit TileQueue(Memory& memory) : memory_(memory) {}

  __device__ void init() const {
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(smem_address(&memory_.full[i]), 1);
      mbarrier_init(smem_address(&memory_.empty[i]), kConsumerThreads / 32);
    }
    fence_mbarrier_init();
  }
  __device__ void put(const Tile& tile) {
    mbarrier_wait(smem_address(&memory_.empty[slot_]), phase_ ^ 1);
    memory_.tiles[slot_] = tile;
    mbarrier_arrive(smem_address(&memory_.full[slot_]));
    advance();
  }
  // By all threads of a consumer warp.
  __device__ Tile take() {
    mbarrier_wait(smem_address(&memory_.full[slot_]), phase_);
    const Tile tile = memory_.tiles[slot_];
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&memory_.empty[slot_]));
    advance();
    return {warp_uniform(tile.task), warp_uniform(tile.row_tile), warp_uniform(tile.part)};
  }

 private:
  __device__ void advance() {
    if (++slot_ == kSlots) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

  Memory& memory_;
  int slot_ = 0;
  int phase_ = 0;
};

// The tile of a number: product by product for block_tiles row tiles, then for those below.
__device__ inline TileQueue::Tile sequence_tile(const SequenceParams& p, int number) {
  const int block = number / (p.block_tiles * p.tiles_a_row);
  const int first = block * p.block_tiles;
  const int rows = min(p.block_tiles, p.row_tiles - first);
  int rest = number - first * p.tiles_a_row;
  int task = 0;
  while (rest >= rows * p.tasks[task].tiles_n) rest -= rows * p.tasks[task++].tiles_n;
  const int tiles_n = p.tasks[task].tiles_n;
  return {task, first + rest / tiles_n, rest % tiles_n};
}

template <class T, int kTileN, int kBlocks>
__device__ __forceinline__ void product_sequence(const SequenceParams& p) {
  constexpr int kTileWarps = kBlocks == 1 ? 8 : 4;
  constexpr int kStep = kKTileBytes / sizeof(T);
  extern __shared__ unsigned char shared[];
  __shared__ TileQueue::Memory queue_memory;
  __shared__ bool is_last;
  const TileScheduler scheduler{0, 1, 0, 0, p.num_stages, p.box_bytes, 1, 1};
  Pipeline<kTileN> pipeline(shared, scheduler);
  TileQueue queue(queue_memory);
  const int group = warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    pipeline.init(kTileWarps);
    queue.init();
  }
  WarpBoxes boxes = pipeline.boxes(p.tasks[0].maps, shared);
  if (threadIdx.x < kConsumerThreads && threadIdx.x % 32 == 0) boxes.init();
  if (threadIdx.x >= kConsumerThreads && threadIdx.x - kConsumerThreads < p.num_tasks) {
    tma_prefetch_map(&p.tasks[threadIdx.x - kConsumerThreads].x_map);
    tma_prefetch_map(&p.tasks[threadIdx.x - kConsumerThreads].w_map);
  }
  __syncthreads();
  await_predecessor();
  launch_dependents();
  if (group == 2) {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x == kConsumerThreads) {
      int number = static_cast<int>(atomicAdd(p.next, 1));
      while (number < p.num_tiles) {
        const int upcoming = static_cast<int>(atomicAdd(p.next, 1));
        const TileQueue::Tile tile = sequence_tile(p, number);
        const SequenceTask& task = p.tasks[tile.task];
        for (unsigned after = task.after; after != 0; after &= after - 1) {
          const int before = __ffs(static_cast<int>(after)) - 1;
          const unsigned* stored = p.stored + before * p.row_tiles + tile.row_tile;
          const unsigned wanted = p.tasks[before].tiles_n * kTileWarps;
          while (ld_acquire_gpu_u32(stored) < wanted) __nanosleep(32);
        }
        fence_proxy_async_global();
        queue.put(tile);
        pipeline.load_tile(&task.x_map, &task.w_map, task.num_k_tiles, kStep,
                           tile.row_tile * kTileRows, tile.part * kTileN);
        number = upcoming;
      }
      queue.put({TileQueue::kNone, 0, 0});
    }
  } else {
    warpgroup_reg_alloc<240>();
    const ColumnVectors columns = pipeline.columns(shared);
    const int warp = warp_uniform(threadIdx.x / 32 % 4);
    // In pingpong every other tile is the other warpgroup's.
    const auto skip = [&] {
      const TileQueue::Tile tile = queue.take();
      if (tile.task != TileQueue::kNone) pipeline.skip(p.tasks[tile.task].num_k_tiles);
      return tile.task != TileQueue::kNone;
    };
    bool goes_on = true;
    if (kBlocks == 2 && group == 1) {
      pass_turn(0);
      goes_on = skip();
    }
    while (goes_on) {
      const TileQueue::Tile tile = queue.take();
      if (tile.task == TileQueue::kNone) break;
      const SequenceTask& task = p.tasks[tile.task];
      const EpilogueParams& e = task.epilogue;
      const int first = kBlocks == 1 ? group * 64 : 0;
      const std::int64_t row = std::int64_t{tile.row_tile} * kTileRows + first + warp * 16;
      columns.start_copies(e, tile.part * kTileN, kTileN, threadIdx.x % 128, 128);
      boxes.use(task.maps);
      if (e.linear.cross_begin < e.linear.cross_end) fence_proxy_async_global();
      TileEpilogue<T, kTileN, false> epilogue(e, columns, boxes, row, tile.part * kTileN);
      epilogue.template start<kBlocks>();
      if (kBlocks == 2) await_turn(group);
      float sums[kBlocks][kTileN / 2];
      multiply<T>(pipeline, task.num_k_tiles, task.last_steps, first, sums);
      if (kBlocks == 2) pass_turn(1 - group);
      ColumnVectors::wait_copies();
      warpgroup_barrier();
      epilogue.finish(sums, tile.part);
      if (task.is_awaited) {
        WarpBoxes::finish_stores();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
          add_release_gpu_u32(p.stored + tile.task * p.row_tiles + tile.row_tile, 1);
      }
      warpgroup_barrier();
      if (kBlocks == 2) goes_on = skip();
    }
    WarpBoxes::finish_stores();
  }
  // The last CTA leaves the counters as they were found: nobody reads them any more.
  __syncwarp();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(p.ended, 1) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  for (int i = static_cast<int>(threadIdx.x); i < p.num_tasks * p.row_tiles; i += kThreads)
    p.stored[i] = 0;
  if (threadIdx.x == 0) *p.next = *p.ended = 0;
}

}  // namespace dpiframe
