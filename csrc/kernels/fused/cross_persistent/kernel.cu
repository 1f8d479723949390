// The persistent fused cross kernel; fused_cross.h has the formulas, smem_layout.h the layout of
// shared memory and the order of the products.
//
// Shapes: ids [F, B], tables and activations of 16 bits, sums and scores float32.
// A cluster of two CTAs takes 128 samples at a time: each CTA gathers half of the fields, makes
// half of each product's columns, sends both to its peer and scores 64 of the samples. Warps 0-3
// and 4-7 are consumer warpgroups with a panel of 64 samples each, warps 8 and 9 gather and score,
// 10 and 11 are the weight producers.
//
// Bytes a tile: ids and embedding rows of its samples once; all weights once, from L2; x_0 and half
// of h to L2 and back, x_0 once for each cross layer.
#include "kernels/fused/cross_persistent/fused_cross_persistent.h"
#include "kernels/fused/cross_persistent/gather.cuh"
#include "kernels/fused/cross_persistent/mainloop.cuh"
#include "kernels/fused/cross_tiles.cuh"
#include "kernels/fused/score.cuh"

namespace dpiframe {
namespace {

using B = FusedCrossPersistentBarriers;

constexpr int kCtaThreads = 384;

// By one thread.
__device__ void start_barriers(const FusedCrossPersistentSmem& smem) {
  init_barriers<B::kX0Full, B::kHFull, B::kPeerFull, B::kSent, B::kPeerEmpty, B::kHStored,
                B::kX0Reloaded, B::kHalfRead, B::kVectorsFull, B::kScoreFull, B::kTileGathered,
                B::kTileLoaded, B::kAllDone>(smem.ring().barriers, kConsumerWarps);
  for (int turn = 0; turn < 2; ++turn)
    mbarrier_arrive_expect_tx(smem.barrier<B::kScoreFull>(turn), 4 * kTileSamples * 4);
}

// The CTA's slices to shared memory, by all threads.
__device__ FieldSlice* copy_slices(const FusedCrossPersistentParams& a, int rank,
                                   unsigned char* shared) {
  const int begin = rank == 0 ? 0 : a.mlp.slices_end[0];
  const int words = (a.mlp.slices_end[rank] - begin) * int(sizeof(FieldSlice) / 16);
  auto* slices = reinterpret_cast<FieldSlice*>(shared + a.smem.slices);
  for (int i = threadIdx.x; i < words; i += kCtaThreads)
    reinterpret_cast<uint4*>(slices)[i] =
        __ldg(reinterpret_cast<const uint4*>(a.mlp.slices + begin) + i);
  return slices;
}

__device__ void gather_and_score(const PersistentGather& gather, const TileScheduler& tiles) {
  const BatchMemory& inputs = gather.inputs;
  gather.run(tiles);
  gather_barrier();
  if (gather.thread >= 32) return;
  const unsigned busy = tiles.num_busy_ctas();
  report_bad_ids(inputs, gather.a.mlp.tickets, gather.a.mlp.num_report, busy);
  __syncwarp();
  if (gather.thread == 0 && inputs.completion.flag != nullptr)
    signal_cta_done(inputs.completion, busy);
  __syncwarp();
}

template <class T, int kCrossTile, int kDeepTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kCtaThreads, 1)
    fused_cross_persistent_sm90(const __grid_constant__ BatchMemory inputs,
                                const __grid_constant__ FusedCrossPersistentParams a) {
  const TileScheduler tiles(inputs.batch);
  if (tiles.first >= tiles.end) return;  // both CTAs
  extern __shared__ __align__(128) unsigned char shared[];
  const FusedCrossPersistentSmem smem{a.smem, smem_address(shared)};
  const int rank = static_cast<int>(cluster_cta_rank());
  const int warp = warp_uniform(threadIdx.x / 32);
  const auto* weights =
      static_cast<const char*>(a.mlp.weights) + std::int64_t{rank} * a.weight_bytes;
  const FieldSlice* slices = copy_slices(a, rank, shared);
  char* x0 = scratch_of(a, blockIdx.x) + scratch_x0_offset(a.tiling, rank, 0, 0);
  const PersistentGather gather{inputs,
                                a,
                                smem,
                                slices,
                                x0,
                                rank,
                                static_cast<int>(threadIdx.x % kGatheringThreads),
                                rank == 0 ? 0 : a.mlp.slices_end[0],
                                a.mlp.slices_end[rank]};
  if (threadIdx.x == kFirstThreads) start_barriers(smem);
  __syncthreads();
  cluster_arrive_relaxed();
  if (threadIdx.x < kFirstThreads) gather.gather_first(tiles.first);
  __syncthreads();
  cluster_wait();
  if (warp < kConsumerWarps) {
    warpgroup_reg_alloc<224>();
    PersistentMainloop<T, kCrossTile, kDeepTile>{{a, smem, rank}}.run(tiles);
  } else {
    warpgroup_reg_dealloc<56>();
    if (warp < 10)
      gather_and_score(gather, tiles);
    else if (threadIdx.x % 32 == 0)
      produce_stages<2, 4>(a.stages, a.num_stages, smem.ring(), warp - 10, tiles.count(),
                           [&](std::uint32_t source, int) { return weights + source; });
    __syncwarp();
  }
  cluster_sync();  // nobody leaves while the peer may still write here
}

}  // namespace

FusedKernel fused_cross_persistent_kernel(DataType type, const FusedCrossPersistentParams& params) {
  const auto kernel_of = []<class T, int kCross, int kDeep>(CrossTiles<T, kCross, kDeep>) {
    return reinterpret_cast<const void*>(fused_cross_persistent_sm90<T, kCross, kDeep>);
  };
  return {select_cross_kernel(type, params.tiling, kernel_of), kCtaThreads, kPersistentSamples,
          params.smem.bytes};
}

}  // namespace dpiframe
