// The fused cross kernel; fused_cross.h has the formulas, smem_layout.h the layout of shared memory
// and the order of the products.
//
// Shapes: ids [F, B], tables and activations of 16 bits, sums and scores float32.
// A cluster of two CTAs owns 64 samples: each CTA gathers half of the fields, makes half of each
// product's columns, sends both to its peer and scores 32 of the samples. Warps 0-7 gather and are
// the consumer warpgroups; warps 8 and 10 are the weight producers, which stream the CTA's half of
// all weights from L2 from the very start; warp 9 exchanges halves and reports bad ids. Behind the
// scores, warp 0 takes a ticket for the completion flag.
//
// Bytes a cluster: ids and embedding rows of its samples once; all weights once.
#include "common/check.h"
#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/cross/mainloop.cuh"
#include "kernels/fused/cross_tiles.cuh"
#include "kernels/fused/gather.cuh"
#include "kernels/fused/tile_scheduler.cuh"

namespace dpiframe {
namespace {

using B = FusedCrossBarriers;
using TileScheduler = SingleTileScheduler<kTileSamples>;

constexpr int kCtaThreads = 352;

// By a producer thread.
__device__ void start_barriers(const FusedCrossParams& a, const FusedCrossSmem& smem, int rank) {
  init_barriers<B::kPeerFull, B::kPeerEmpty, B::kSent, B::kVectorsFull, B::kGathered, B::kScoreFull,
                B::kHalfWritten>(smem.barriers(), kConsumerWarps);
  mbarrier_arrive_expect_tx(smem.barrier<B::kScoreFull>(), 32 * 4 * 8);
  for (int i = 0; i < a.tiling.num_deep + a.tiling.num_cross - 1; ++i) {
    const bool is_x = i == 0 || i >= a.tiling.num_deep;
    const int chunks = is_x ? a.mlp.x_chunks[1 - rank] : output_chunks(a.tiling.deep_tile) / 2;
    mbarrier_arrive_expect_tx(smem.barrier<B::kPeerFull>(i), chunks * kChunkStride);
  }
}

// Biases, heads and the table of stages, then a producer's weights; by one thread.
__device__ void produce(const FusedCrossParams& a, const FusedCrossSmem& smem, int rank,
                        int producer) {
  if (producer == 0) {
    const int vectors = smem.at.stages - smem.at.vectors;
    const int stages = a.num_stages * static_cast<int>(sizeof(CrossWeightStage));
    mbarrier_arrive_expect_tx(smem.barrier<B::kVectorsFull>(), vectors + stages);
    tma_bulk_load(smem.base + smem.at.vectors,
                  reinterpret_cast<const char*>(a.mlp.vectors) + rank * vectors, vectors,
                  smem.barrier<B::kVectorsFull>());
    tma_bulk_load(smem.base + smem.at.stages, a.stages + rank * a.num_stages, stages,
                  smem.barrier<B::kVectorsFull>());
  }
  produce_weights(a, smem, rank, producer);
}

__device__ void gather_x0(const BatchMemory& inputs, const FusedCrossParams& a,
                          const FusedCrossSmem& smem, int rank, std::int64_t first_sample,
                          FieldSlice* slices) {
  const GatherSample sample(first_sample, inputs.batch);
  const float wide = gather_half(inputs, a.mlp, rank, sample, slices, smem.base);
  cluster_wait();
  if (sample.half == 0)
    smem.send_to_score(smem.at.wide_sums, rank * 2 + threadIdx.x / 128, sample.of_tile, wide);
  mbarrier_arrive(smem.barrier<B::kGathered>());
}

// By one warp, once all that belongs to the CTA's samples is there: a sample a lane.
__device__ void score(const BatchMemory& inputs, const FusedCrossParams& a,
                      const FusedCrossSmem& smem, std::int64_t first_sample) {
  const int lane = threadIdx.x % 32;
  mbarrier_wait(smem.barrier<B::kScoreFull>(), 0);
  float sum = a.mlp.bias;
  for (int part = 0; part < 4; ++part)
    sum += ld_shared_f32(smem.base + smem.at.wide_sums + (part * 32 + lane) * 4);
  for (int part = 0; part < 4; ++part)
    sum += ld_shared_f32(smem.base + smem.at.dots + (part * 32 + lane) * 4);
  write_score(inputs, first_sample + lane, sum);
}

template <class T, int kCrossTile, int kDeepTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kCtaThreads, 1)
    fused_cross_sm90(const __grid_constant__ BatchMemory inputs,
                     const __grid_constant__ FusedCrossParams a) {
  const std::int64_t first_sample = TileScheduler::first_sample();
  if (first_sample >= inputs.batch) return;  // both CTAs
  extern __shared__ __align__(128) unsigned char shared[];
  const FusedCrossSmem smem{a.smem, smem_address(shared)};
  const int rank = static_cast<int>(cluster_cta_rank());
  const int warp = warp_uniform(threadIdx.x / 32);
  if (threadIdx.x == 32 * kConsumerWarps) start_barriers(a, smem, rank);
  __syncwarp();
  cluster_arrive_relaxed();
  if (warp < kConsumerWarps) {
    auto* slices = reinterpret_cast<FieldSlice*>(shared + smem.at.slices);
    gather_x0(inputs, a, smem, rank, first_sample, slices);
    CrossMainloop<T, kCrossTile, kDeepTile>{a, smem, rank}.run();
  } else if (warp == 8) {
    if (threadIdx.x % 32 == 0) produce(a, smem, rank, 0);
    __syncwarp();
    cluster_wait();
  } else if (warp > 9) {
    cluster_wait();
    if (threadIdx.x % 32 == 0) produce(a, smem, rank, warp - 9);
  } else {
    cluster_wait();
    exchange_halves<kDeepTile>(a, smem, rank);
    mbarrier_wait(smem.barrier<B::kGathered>(), 0);
    report_bad_ids(inputs, a.mlp.tickets, a.mlp.num_report,
                   TileScheduler::num_busy_ctas(inputs.batch));
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem.barrier<B::kScoreFull>());
  }
  if (warp != 0) return;
  score(inputs, a, smem, first_sample + rank * 32);
  __syncwarp();
  if (threadIdx.x == 0 && inputs.completion.flag != nullptr)
    signal_cta_done(inputs.completion, TileScheduler::num_busy_ctas(inputs.batch));
}

}  // namespace

FusedKernel fused_cross_kernel(DataType type, const FusedCrossParams& params) {
  const auto kernel_of = []<class T, int kCross, int kDeep>(CrossTiles<T, kCross, kDeep>) {
    return reinterpret_cast<const void*>(fused_cross_sm90<T, kCross, kDeep>);
  };
  return {select_cross_kernel(type, params.tiling, kernel_of), kCtaThreads, kTileSamples,
          params.smem.bytes};
}

}  // namespace dpiframe
