// Float32 product on Hopper's float16 tensor cores; linear.h has the formulas.
//
// FP16x3 emulation (Ootomo and Yokota, arXiv 2203.03341): a value times a power of two s is the sum
// of two float16, v s = large + small, to 22 bits. Three products, large large + large small +
// small large, summed in float32, give a float32-grade result at a third of the float16 rate, five
// times the rate of CUDA cores. float16 has few exponents, so s is chosen for every row of x in
// every k tile of 32 columns (it brings the largest value into [2^14, 2^15)), and for every row of
// w when it is prepared: rows of any magnitude are as exact.
//
// As in the paper, a k tile's products start from zero and are then added to the total, over s, in
// registers: tensor cores truncate their sums instead of rounding, so these are kept short.
//
// Tiles, CTAs and warps are those of sm90_linear.cuh, not pingpong: 64 rows a warpgroup. x goes
// from shared memory to registers, is split there (fp16x3_rows.cuh) and is wgmma's register
// operand; a tile's columns are two halves: one is multiplied while the other's sums are added and
// the next k tile is split.
#pragma once

#include "kernels/gemm/fp16x3_rows.cuh"
#include "kernels/gemm/split_k.cuh"

namespace dpiframe {

// The mainloop over one tile. The halves of its columns have accumulators of their own and take
// turns: while one half's products run, the other's are added to the totals.
template <class Form>
class Fp16x3Mainloop {
  static constexpr int kTileN = Form::kTileN;

 public:
  __device__ Fp16x3Mainloop(Pipeline<Form>& pipeline, const unsigned char* shared, int first_row,
                            float (&totals)[kTileN / 2])
      : pipeline_(pipeline),
        rows_(first_row * kKTileBytes - smem_address(shared)),
        shared_(shared),
        totals_(totals) {}

  // Two k tiles an iteration, each with registers of its own: wgmma still reads one's rows while
  // the next one's are split.
  __device__ __forceinline__ void run(int num_k_tiles) {
#pragma unroll
    for (float& total : totals_) total = 0.0f;
    pipeline_.wait_full();
    Fp16x3Rows even = split();
    Fp16x3Rows odd = even;
    start(left_, even, 0);
    int more = num_k_tiles - 1;
#pragma unroll 1
    for (; more >= 2; more -= 2) {
      step(even, odd);
      step(odd, even);
    }
    if (more == 0) return finish(even);
    step(even, odd);
    finish(odd);
  }

 private:
  static constexpr int kHalf = kTileN / 2;
  static_assert(kHalf % 8 == 0, "a half is rows of w in whole swizzle atoms");
  using Sums = float[kHalf / 2];

  // From a k tile whose left half runs to the next one in the same state.
  __device__ __forceinline__ void step(Fp16x3Rows& x, Fp16x3Rows& next) {
    start(right_, x, kHalf);
    const int used = pipeline_.stage();
    pipeline_.advance();
    pipeline_.wait_full();
    next = split();
    wgmma_wait<1>();
    add(left_, x, 0);
    start(left_, next, 0);
    wgmma_wait<1>();
    x.settle();
    add(right_, x, kHalf);
    pipeline_.release(used);
  }
  __device__ __forceinline__ void finish(Fp16x3Rows& x) {
    start(right_, x, kHalf);
    wgmma_wait<1>();
    add(left_, x, 0);
    wgmma_wait<0>();
    x.settle();
    add(right_, x, kHalf);
    pipeline_.release(pipeline_.stage());
    pipeline_.advance();
  }

  __device__ Fp16x3Rows split() const {
    return Fp16x3Rows(shared_ + (pipeline_.x() + rows_), threadIdx.x % 32);
  }
  // The products of the half that begins at column `first`, from zero. The small ones come first,
  // so that what the tensor cores truncate is small, too.
  __device__ __forceinline__ void start(Sums& sums, const Fp16x3Rows& x, int first) const {
    const std::uint64_t large =
        wgmma_descriptor_swizzle128(pipeline_.w()) + first * kKTileBytes / 16;
    const std::uint64_t small = large + 4;
    wgmma_fence();
    WgmmaRs<kHalf>::half(sums, x.small[0], large, 0);
    WgmmaRs<kHalf>::half(sums, x.small[1], large + 2, 1);
    WgmmaRs<kHalf>::half(sums, x.large[0], small, 1);
    WgmmaRs<kHalf>::half(sums, x.large[1], small + 2, 1);
    WgmmaRs<kHalf>::half(sums, x.large[0], large, 1);
    WgmmaRs<kHalf>::half(sums, x.large[1], large + 2, 1);
    wgmma_commit();
  }
  __device__ __forceinline__ void add(Sums& sums, const Fp16x3Rows& x, int first) {
    wgmma_fence_operands(sums);
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i)
      totals_[first / 2 + i] = fmaf(sums[i], x.inverse[i / 2 % 2], totals_[first / 2 + i]);
  }

  Pipeline<Form>& pipeline_;
  std::uint32_t rows_;
  const unsigned char* shared_;
  float (&totals_)[kTileN / 2];
  Sums left_;
  Sums right_;
};

// The kernel; its parameters are __grid_constant__.
template <class Form, class Epilogue>
__device__ __forceinline__ void fp16x3_tiles(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                             const EpilogueMaps& maps,
                                             const typename Epilogue::Params& e,
                                             const TileScheduler& scheduler) {
  constexpr int kTileN = Form::kTileN;
  extern __shared__ unsigned char shared[];
  Pipeline<Form> pipeline(shared, scheduler);
  WarpBoxes boxes = pipeline.boxes(maps, shared);
  pipeline.init(Form::kConsumerThreads / 32, x_map, w_map, boxes);
  const int group = warp_uniform(threadIdx.x / 128);
  if (group == Form::kConsumerThreads / 128) {
    Form::leave_registers();
    if (threadIdx.x == Form::kConsumerThreads) pipeline.produce(&x_map, &w_map, scheduler, 32, 64);
    if (scheduler.split > 1) SplitK(pipeline, scheduler).meet();
  } else {
    Form::take_registers();
    const ColumnVectors columns = pipeline.columns(shared);
    const int first = warp_uniform(threadIdx.x / 32) * 16;
    const int num_k_tiles = scheduler.own_k_tiles();
    TileWalk<Form> walk(scheduler);
    int copied = walk.part();  // the part whose column vectors are there
    columns.start_copies(e, copied * kTileN, kTileN, threadIdx.x % 128, 128);
    await_kernels_ahead();
    do {
      const int part = walk.part();
      const std::int64_t row = walk.row() + first;
      if (part != copied) columns.start_copies(e, part * kTileN, kTileN, threadIdx.x % 128, 128);
      copied = part;
      Epilogue epilogue(e, columns, boxes, row, part * kTileN);
      const SplitK split(pipeline, scheduler);
      if (split.finishes()) epilogue.template start<1>();
      float totals[1][kTileN / 2];
      Fp16x3Mainloop<Form>(pipeline, shared, first, totals[0]).run(num_k_tiles);
      if (scheduler.split > 1) split.add(shared, totals[0]);
      ColumnVectors::wait_copies();
      warpgroup_barrier();
      if (split.finishes()) epilogue.finish(totals, part);
      warpgroup_barrier();
    } while (walk.advance());
    WarpBoxes::finish_stores();
  }
}

}  // namespace dpiframe
