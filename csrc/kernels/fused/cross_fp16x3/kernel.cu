// The fused FP16x3 cross kernel; fused_cross.h has the formulas, smem_layout.h the layout of shared
// memory and the order of the products.
//
// Numbers are two float16 as in gemm/sm90_linear_fp16x3.cu, but split where they are made, and
// once: with a power of two for each sample of a quarter of the columns.
//
// Shapes: ids [F, B], tables, sums and scores float32.
// A cluster of two CTAs takes 64 samples at a time: each of their four consumer warpgroups gathers
// a quarter of x_0's columns and makes a quarter of each product's. Warp 8 checks the ids and
// scores, warp 9 sends each quarter to the peer, 10 to 15 are the producers of weights, vectors and
// x_0.
//
// Bytes a tile: embedding rows of its samples once, ids by the gather and by the check; all weights
// once, from L2, 4 bytes each; x_0 to L2 and back for each cross layer, h of the first deep layer
// once.
#include "common/check.h"
#include "kernels/fused/cross_fp16x3/exchange.cuh"
#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"
#include "kernels/fused/cross_fp16x3/mainloop.cuh"
#include "kernels/fused/cross_fp16x3/score.cuh"

namespace dpiframe {
namespace {

using B = FusedCrossFp16x3Barriers;

constexpr int kCtaThreads = 512;

// By one thread.
__device__ void start_barriers(const FusedCrossFp16x3Smem& smem) {
  init_barriers<B::kHFull, B::kPeerFull, B::kSent, B::kWritten, B::kPeerEmpty, B::kHStored,
                B::kX0Stored, B::kXDone, B::kScoreFull, B::kScored, B::kPeerHStored>(
      smem.ring().barriers, (kRacecheck ? 32 : 1) * kConsumerWarps);
  mbarrier_arrive_expect_tx(smem.barrier<B::kScoreFull>(), kScoreBytes);
}

// By one thread of kFp16x3Producers.
__device__ void produce(const FusedCrossFp16x3Params& a, const FusedCrossFp16x3Smem& smem, int rank,
                        int producer, const Fp16x3TileScheduler& tiles) {
  const auto* weights = static_cast<const char*>(a.weights) + std::int64_t{rank} * a.weight_bytes;
  const auto* vectors = reinterpret_cast<const char*>(a.vectors + rank * a.vector_floats);
  const char* own = a.scratch + static_cast<std::size_t>(blockIdx.x) * a.scratch_bytes;
  const auto from = [&](std::uint32_t source, int tile) {
    const auto kind = static_cast<StageSource>(source >> kSourceBits);
    const std::uint32_t offset = source & ((1u << kSourceBits) - 1);
    if (kind == StageSource::kWeights) return weights + offset;
    if (kind == StageSource::kVectors) return vectors + offset;
    mbarrier_wait(smem.barrier<B::kX0Stored>(), tile & 1);
    return own + offset;
  };
  produce_stages<kFp16x3Producers, 2>(a.stages, a.num_stages, smem.ring(), producer, tiles.count(),
                                      from);
}

template <int kCrossTile, int kDeepTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kCtaThreads, 1)
    fused_cross_fp16x3_sm90(const __grid_constant__ BatchMemory inputs,
                            const __grid_constant__ FusedCrossFp16x3Params a) {
  const Fp16x3TileScheduler tiles(inputs.batch);
  if (tiles.first >= tiles.end) return;  // both CTAs
  extern __shared__ __align__(128) char shared[];
  const FusedCrossFp16x3Smem smem{a.smem, smem_address(shared)};
  const int rank = static_cast<int>(cluster_cta_rank());
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp < kConsumerWarps) [[likely]] {
    cluster_arrive_relaxed();  // before the barriers are there: the gather needs none
    warpgroup_reg_alloc<208>();
    Fp16x3Mainloop<kCrossTile, kDeepTile>{inputs, a, smem, rank}.run(tiles);
  } else {
    warpgroup_reg_dealloc<48>();
    if (threadIdx.x == 32 * kConsumerWarps) start_barriers(smem);
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
    if (warp == kConsumerWarps)
      Fp16x3Scorer{inputs, a, smem, rank}.run(tiles);
    else if (threadIdx.x % 32 == 0 && warp == kConsumerWarps + 1)
      Fp16x3Exchange{a, smem, rank}.run(tiles);
    else if (threadIdx.x % 32 == 0)
      produce(a, smem, rank, warp - kConsumerWarps - 2, tiles);
    __syncwarp();
  }
  cluster_sync();  // nobody leaves while the peer may still write here
}

template <int kCrossTile>
const void* kernel_of(int deep_tile) {
  switch (deep_tile) {
    case 112:
      return reinterpret_cast<const void*>(fused_cross_fp16x3_sm90<kCrossTile, 112>);
    case 128:
      return reinterpret_cast<const void*>(fused_cross_fp16x3_sm90<kCrossTile, 128>);
    default:
      DPIF_CHECK(false, "no kernel has quarters of ", deep_tile, " columns");
  }
}

}  // namespace

FusedKernel fused_cross_fp16x3_kernel(const FusedCrossFp16x3Params& params) {
  const Fp16x3Tiling& tiling = params.tiling;
  const void* function = tiling.cross_tile == 112 ? kernel_of<112>(tiling.deep_tile)
                                                  : kernel_of<160>(tiling.deep_tile);
  return {function, kCtaThreads, kTileSamples, params.smem.bytes};
}

}  // namespace dpiframe
