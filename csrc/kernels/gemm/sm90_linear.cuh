// Product on Hopper's tensor cores, operands in shared memory; linear.h has the formulas.
//
// fp16 and bf16 as they are, tf32 from float32 (the hardware ignores the low 13 bits of x; w was
// rounded when it was prepared). Sums in float32.
//
// Warp-specialised and, but for tiles of 64 rows, persistent: a CTA has consumer warpgroups and a
// producer thread, which runs ahead through the pipeline's stages, also into the next tile. kBlocks
// 1 (cooperative): both warpgroups work on each tile, 64 rows each, or one on a tile of 64 rows.
// kBlocks 2 (pingpong): they take tiles in turn, 128 rows each, so that one runs its epilogue while
// the other multiplies. What does not depend on the kernels ahead is done before they have ended.
//
// Bytes: x once from memory (its other reads, one for each tile of columns, hit L2), w from L2 once
// a tile, out once. Rows beyond `rows`, and columns beyond n and k, are zeros in shared memory and
// never stored.
//
// `Epilogue` is TileEpilogue, or the MapEpilogue of a kernel that is compiled at load.
#pragma once

#include "kernels/gemm/split_k.cuh"

namespace dpiframe {

// One wgmma step of all blocks: 32 bytes of k.
template <class T, int kTileN, int kBlocks>
__device__ __forceinline__ void multiply_step(std::uint64_t x, std::uint64_t w, int step, int adds,
                                              float (&sums)[kBlocks][kTileN / 2]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    Wgmma<kTileN>::template ss<T>(sums[b], x + b * 64 * kKTileBytes / 16 + step * 2, w + step * 2,
                                  adds);
}

// The mainloop over one tile: a k tile's four wgmma steps are issued while the one before still
// runs; the last k tile has `last_steps`, as many as k fills, but of short tiles, which wait for
// their loads and not for steps.
template <class T, class Form>
__device__ __forceinline__ void multiply(Pipeline<Form>& pipeline, int num_k_tiles, int last_steps,
                                         int first_row,
                                         float (&sums)[Form::kBlocks][Form::kTileN / 2]) {
  constexpr int kTileN = Form::kTileN;
  int before = -1;
  const auto k_tile = [&](auto steps) {
    pipeline.wait_full();
    const std::uint64_t x = wgmma_descriptor_swizzle128(pipeline.x() + first_row * kKTileBytes);
    const std::uint64_t w = wgmma_descriptor_swizzle128(pipeline.w());
    wgmma_fence();
    steps(x, w, before + 1);
    wgmma_commit();
    if (before >= 0) {
      wgmma_wait<1>();
      pipeline.release(before);
    }
    before = pipeline.stage();
    pipeline.advance();
  };
#pragma unroll 1
  for (int i = num_k_tiles; i > (Form::kShort ? 0 : 1); --i) {
    k_tile([&](std::uint64_t x, std::uint64_t w, int adds) {
#pragma unroll
      for (int step = 0; step < 4; ++step) multiply_step<T, kTileN>(x, w, step, adds + step, sums);
    });
  }
  if constexpr (!Form::kShort) {
    k_tile([&](std::uint64_t x, std::uint64_t w, int adds) {
#pragma unroll 1
      for (int step = 0; step < last_steps; ++step) {
        wgmma_fence();
        multiply_step<T, kTileN>(x, w, step, adds + step, sums);
      }
    });
  }
  wgmma_wait<0>();
#pragma unroll
  for (auto& block : sums) wgmma_fence_operands(block);
  pipeline.release(before);
}

// The order of two pingpong warpgroups, by named barriers: a phase's parity tells a round of the
// pipeline from the one before, not from the one before that, so a warpgroup starts its mainloop
// only when the other has ended its own.
__device__ inline void await_turn(int group) {
  named_barrier_sync<256>(1 + group);
}
__device__ inline void pass_turn(int group) {
  named_barrier_arrive<256>(1 + group);
}

template <class Epilogue, bool kPlaces, int kTileN>
__device__ __forceinline__ Epilogue tile_epilogue(const typename Epilogue::Params& e,
                                                  const ColumnVectors& columns, WarpBoxes& boxes,
                                                  std::int64_t row,
                                                  const TileColumns<kPlaces, kTileN>& own) {
  if constexpr (kPlaces)
    return Epilogue(e, columns, boxes, row, own.first, own.end, own.place);
  else
    return Epilogue(e, columns, boxes, row, own.first);
}

// The kernel; its parameters are __grid_constant__.
template <class T, class Form, class Epilogue, bool kPlaces = false>
__device__ __forceinline__ void linear_tiles(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                             const EpilogueMaps& maps,
                                             const typename Epilogue::Params& e,
                                             const TileScheduler& scheduler) {
  constexpr int kTileN = Form::kTileN;
  constexpr int kBlocks = Form::kBlocks;
  extern __shared__ unsigned char shared[];
  Pipeline<Form> pipeline(shared, scheduler);
  WarpBoxes boxes = pipeline.boxes(maps, shared);
  pipeline.init(kBlocks == 1 ? Form::kConsumerThreads / 32 : 4, x_map, w_map, boxes);
  const int group = warp_uniform(threadIdx.x / 128);
  if (group == Form::kConsumerThreads / 128) {
    Form::leave_registers();
    constexpr int kStep = kKTileBytes / sizeof(T);
    if (threadIdx.x == Form::kConsumerThreads)
      pipeline.template produce<kPlaces>(&x_map, &w_map, scheduler, kStep, kStep);
    if (kBlocks == 1 && scheduler.split > 1) SplitK(pipeline, scheduler).meet();
  } else {
    Form::take_registers();
    const ColumnVectors columns = pipeline.columns(shared);
    const int warp = warp_uniform(threadIdx.x / 32 % 4);
    const int num_k_tiles = kBlocks == 1 ? scheduler.own_k_tiles() : scheduler.num_k_tiles;
    const int last_steps = kBlocks == 1 ? scheduler.own_last_steps() : scheduler.last_steps;
    const int first = kBlocks == 1 ? group * 64 : 0;
    int whose = 0;
    TileWalk<Form> walk(scheduler);
    int copied = walk.part();  // the part whose column vectors are there
    columns.start_copies(e, TileColumns<kPlaces, kTileN>(scheduler, copied).first, kTileN,
                         threadIdx.x % 128, 128);
    await_kernels_ahead();
    if (kBlocks == 2 && group == 1) pass_turn(0);
    for (bool is_tile = true; is_tile; is_tile = walk.advance(), whose ^= 1) {
      if (kBlocks == 2 && whose != group) {
        pipeline.skip(num_k_tiles);
        continue;
      }
      const int part = walk.part();
      const std::int64_t row = walk.row() + first + warp * 16;
      const TileColumns<kPlaces, kTileN> own(scheduler, part);
      if (part != copied) {
        ColumnVectors::wait_copies();
        columns.start_copies(e, own.first, kTileN, threadIdx.x % 128, 128);
      }
      copied = part;
      Epilogue epilogue = tile_epilogue<Epilogue>(e, columns, boxes, row, own);
      const SplitK split(pipeline, scheduler);
      const bool finishes = kBlocks == 2 || split.finishes();
      if (finishes) epilogue.template start<kBlocks>();
      if (kBlocks == 2) await_turn(group);
      float sums[kBlocks][kTileN / 2];
      multiply<T>(pipeline, num_k_tiles, last_steps, first, sums);
      if (kBlocks == 2) pass_turn(1 - group);
      if (kBlocks == 1 && scheduler.split > 1) split.add(shared, sums[0]);
      ColumnVectors::wait_copies();
      warpgroup_barrier();
      if (finishes) epilogue.finish(sums, part);
      warpgroup_barrier();
    }
    WarpBoxes::finish_stores();
  }
}

}  // namespace dpiframe
