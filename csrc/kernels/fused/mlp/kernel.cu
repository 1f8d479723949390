// The fused MLP kernel; fused_mlp.h has the formulas, smem_layout.h the layout of shared memory.
//
// Shapes: ids [F, B], tables and activations of 16 bits, sums and scores float32.
// A cluster of two CTAs owns 64 samples. Each CTA gathers half of the fields, makes half of each
// layer's columns, sends both to its peer (one TMA bulk copy to DSMEM a layer) and scores 32 of the
// samples. Warps 0-7 gather and are the consumer warpgroups; warps 8 and 10 are the weight
// producers, which stream the CTA's half of all weights from L2 from the very start; warp 9 adds up
// FM's squares and reports bad ids. Behind the scores, warp 0 takes a ticket for the completion
// flag.
//
// Bytes a cluster: ids and embedding rows of its samples once; all weights once.
#include "common/check.h"
#include "kernels/fused/mlp/epilogue.cuh"
#include "kernels/fused/mlp/fused_mlp.h"
#include "kernels/fused/mlp/gather.cuh"
#include "kernels/fused/mlp/mainloop.cuh"
#include "kernels/fused/tile_scheduler.cuh"

namespace dpiframe {
namespace {

using B = FusedMlpBarriers;
using TileScheduler = SingleTileScheduler<kTileSamples>;

constexpr int kCtaThreads = 352;

// By a producer thread.
__device__ void start_barriers(const FusedMlpSmem& smem, const FusedMlpParams& a, int rank) {
  init_barriers<B::kPeerFull, B::kVectorsFull, B::kGathered, B::kSquared, B::kScoreFull>(
      smem.barriers(), kConsumerWarps);
  mbarrier_arrive_expect_tx(smem.barriers().at<B::kScoreFull>(),
                            32 * 4 * (8 + 2 * a.has_fm + a.first_extra[4]));
  for (int layer = 0; layer < a.num_layers; ++layer) {
    const int chunks = layer == 0 ? a.x_chunks[1 - rank] : output_chunks(a.tile) / 2;
    mbarrier_arrive_expect_tx(smem.barriers().at<B::kPeerFull>(layer), chunks * kChunkStride);
  }
}

// Biases and head, then a producer's weights; by one thread.
template <int kTile>
__device__ void produce(const FusedMlpSmem& smem, const FusedMlpParams& a, int rank, int producer) {
  const int vector_bytes = (a.num_layers + 1) * 2 * kTile * 4;
  const int steps = (a.x_chunks[0] + a.x_chunks[1] + (a.num_layers - 1) * output_chunks(kTile)) / 2;
  const auto* weights = static_cast<const char*>(a.weights) +
                        static_cast<std::int64_t>(rank) * steps * weight_step_bytes(kTile);
  if (producer == 0) {
    const std::uint32_t full = smem.barriers().at<B::kVectorsFull>();
    mbarrier_arrive_expect_tx(full, vector_bytes);
    tma_bulk_load(smem.base + smem.at.vectors,
                  reinterpret_cast<const char*>(a.vectors) + rank * vector_bytes, vector_bytes,
                  full);
  }
  MlpWeightRing<kTile>{smem}.produce(weights, steps, producer);
}

// The CTA's half of a layer's input to the peer, once all of it is written.
__device__ void send_half(const FusedMlpSmem& smem, int layer, const InputHalves& halves,
                          int rank) {
  consumer_barrier();
  if (threadIdx.x == 0) {
    const std::uint32_t half = smem.input(layer) + halves.offset(rank);
    tma_bulk_copy_to_cta(mapa(half, 1 - rank), half, halves.chunks(rank) * kChunkStride,
                         mapa(smem.barriers().at<B::kPeerFull>(layer), 1 - rank));
  }
  __syncwarp();
}

template <class T, int kTile>
__device__ void run_layers(const FusedMlpParams& a, const FusedMlpSmem& smem, int rank) {
  const ConsumerThread thread;
  MlpWeightRing<kTile> ring{smem};
  const int quarter_chunks = kTile / 8;
  const std::uint32_t vectors =
      smem.base + smem.at.vectors + (thread.warpgroup * kTile + thread.first_column()) * 4;
  float dots[2] = {};
#pragma unroll 1
  for (int layer = 0; layer < a.num_layers; ++layer) {
    const InputHalves halves{layer == 0 ? a.x_chunks[0] : 2 * quarter_chunks,
                             layer == 0 ? a.x_chunks[1] : 2 * quarter_chunks};
    send_half(smem, layer, halves, rank);
    float sums[kTile / 2] = {};
    ring.template multiply<T>(layer, halves, rank, sums);
    if (layer == 0) mbarrier_wait(smem.barriers().at<B::kVectorsFull>(), 0);
    const std::uint32_t bias = vectors + layer * 2 * kTile * 4;
    const std::uint32_t target = smem.input(layer + 1) +
                                 (rank * 2 + thread.warpgroup) * quarter_chunks * kChunkStride +
                                 thread.chunk_offset();
    const int width = quarter_width(a.widths[layer], rank * 2 + thread.warpgroup);
    if (layer == 0) send_extras<kTile>(sums, bias, a, rank, smem);
    if (layer + 1 < a.num_layers) {
      store_relu<T, kTile>(sums, bias, target);
      clear_padding<kTile>(width, target);
    } else {
      add_relu_head<kTile>(sums, bias, bias + 2 * kTile * 4, width, dots);
    }
    fence_proxy_async_shared();
    // The output of the next layer overwrites x_0.
    if (layer == 0 && a.has_fm != 0) mbarrier_wait(smem.barriers().at<B::kSquared>(), 0);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float dot = quad_sum(dots[r]);
    if (thread.lane % 4 == 0)
      smem.send_to_score(smem.at.dots, rank * 2 + thread.warpgroup, thread.first_sample() + 8 * r,
                         dot);
  }
  __syncwarp();
}

// By one warp, once all that belongs to the CTA's samples is there: a sample a lane.
__device__ void score(const BatchMemory& inputs, const FusedMlpParams& a, const FusedMlpSmem& smem,
                      std::int64_t first_sample) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t extras = smem.base + smem.at.extras + 4 * lane * smem.at.extras_stride;
  mbarrier_wait(smem.barriers().at<B::kScoreFull>(), 0);
  float sum = a.bias;
  for (int part = 0; part < 4 + 2 * a.has_fm; ++part)
    sum += ld_shared_f32(smem.base + smem.at.wide_sums + (part * 32 + lane) * 4);
  for (int part = 0; part < 4; ++part)
    sum += ld_shared_f32(smem.base + smem.at.dots + (part * 32 + lane) * 4);
  float alpha = 1.0f;
  for (int i = 0; i < a.num_shifts; ++i)
    alpha = fmaf(alpha, 1.0f + ld_shared_f32(extras + 4 * i), 0.0f) + a.shifts[i];
  if (a.has_cross != 0) sum = fmaf(alpha, ld_shared_f32(extras + 4 * a.num_shifts), sum);
  float fm = 0.0f;
  for (int i = a.num_shifts + a.has_cross; i < a.first_extra[4]; ++i) {
    const float one = ld_shared_f32(extras + 4 * i);
    fm = fmaf(one, one, fm);
  }
  sum = fmaf(0.5f, fm, sum);
  write_score(inputs, first_sample + lane, sum);
}

template <class T, int kTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kCtaThreads, 1)
    fused_mlp_sm90(const __grid_constant__ BatchMemory inputs,
                   const __grid_constant__ FusedMlpParams a) {
  const std::int64_t first_sample = TileScheduler::first_sample();
  if (first_sample >= inputs.batch) return;  // both CTAs
  extern __shared__ __align__(128) unsigned char shared[];
  const FusedMlpSmem smem{
      fused_mlp_smem(kTile, a.num_layers, a.x_chunks[0] + a.x_chunks[1], a.first_extra[4]),
      smem_address(shared)};
  const int rank = static_cast<int>(cluster_cta_rank());
  const int warp = warp_uniform(threadIdx.x / 32);
  if (threadIdx.x == 32 * kConsumerWarps) start_barriers(smem, a, rank);
  __syncwarp();
  cluster_arrive_relaxed();
  if (warp < kConsumerWarps) {
    auto* slices = reinterpret_cast<FieldSlice*>(shared + smem.at.slices);
    gather_x0(inputs, a, smem, rank, first_sample, slices);
    run_layers<T, kTile>(a, smem, rank);
  } else if (warp == 8) {
    if (threadIdx.x % 32 == 0) produce<kTile>(smem, a, rank, 0);
    __syncwarp();
    cluster_wait();
  } else if (warp > 9) {
    cluster_wait();
    if (threadIdx.x % 32 == 0) produce<kTile>(smem, a, rank, warp - 9);
  } else {
    cluster_wait();
    mbarrier_wait(smem.barriers().at<B::kGathered>(), 0);
    if (a.has_fm != 0) add_squares<T>(a, smem, rank);
    report_bad_ids(inputs, a.tickets, a.num_report, TileScheduler::num_busy_ctas(inputs.batch));
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem.barriers().at<B::kScoreFull>());
  }
  if (warp != 0) return;
  score(inputs, a, smem, first_sample + rank * 32);
  __syncwarp();
  if (threadIdx.x == 0 && inputs.completion.flag != nullptr)
    signal_cta_done(inputs.completion, TileScheduler::num_busy_ctas(inputs.batch));
}

template <class T>
const void* kernel_of(int tile) {
  switch (tile) {
    case 64:
      return reinterpret_cast<const void*>(fused_mlp_sm90<T, 64>);
    case 104:
      return reinterpret_cast<const void*>(fused_mlp_sm90<T, 104>);
    case 128:
      return reinterpret_cast<const void*>(fused_mlp_sm90<T, 128>);
    default:
      DPIF_CHECK(false, "no kernel has quarters of ", tile, " columns");
  }
}

}  // namespace

FusedKernel fused_mlp_kernel(DataType type, const FusedMlpParams& a) {
  const void* function =
      type == DataType::kHalf ? kernel_of<__half>(a.tile) : kernel_of<__nv_bfloat16>(a.tile);
  const int chunks = a.x_chunks[0] + a.x_chunks[1];
  return {function, kCtaThreads, kTileSamples,
          fused_mlp_smem(a.tile, a.num_layers, chunks, a.first_extra[4]).bytes};
}

}  // namespace dpiframe
