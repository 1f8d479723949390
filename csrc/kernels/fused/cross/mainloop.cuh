// The mainloop of the fused cross kernel: all layers, one after another.
//
// An output overwrites its product's input, or weights: a CTA writes its own half once both of its
// warpgroups are done with the product, and the other half of the peer's memory once those of the
// peer are (kPeerEmpty). What it sent is overwritten once the peer has it (kSent).
#pragma once

#include "kernels/fused/barriers.cuh"
#include "kernels/fused/cross/epilogue.cuh"
#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/gather.cuh"
#include "kernels/fused/score.cuh"
#include "ptx/tma.cuh"

namespace dpiframe {

constexpr int kWeightProducers = 2;  // threads, each in a warp of its own

// A CTA's shared memory by address.
struct FusedCrossSmem {
  const FusedCrossSmemLayout& at;
  std::uint32_t base;

  __device__ CtaBarriers barriers() const { return {base + at.barriers}; }
  template <BarrierGroup kGroup>
  __device__ std::uint32_t barrier(int i = 0) const {
    return barriers().at<kGroup>(i);
  }
  __device__ std::uint32_t full(int stage) const { return barriers().full(stage % kMaxStages); }
  __device__ std::uint32_t empty(int stage) const { return full(stage) + 8; }
  // Number `part` of `array`, of a sample of the tile, to the CTA that scores it.
  __device__ void send_to_score(int array, int part, int sample, float value) const {
    st_async(mapa(base + array + (part * 32 + sample % 32) * 4, sample / 32), value,
             mapa(barrier<FusedCrossBarriers::kScoreFull>(), sample / 32));
  }
};

__device__ inline unsigned parity_of(unsigned stage) {
  return stage / kMaxStages % 2;
}

// By one of the producers: every other stage of the CTA. The wait for the stage whose barriers it
// takes over also implies that all earlier stages are free; otherwise parity waits on later ones
// are ambiguous.
__device__ inline void produce_weights(const FusedCrossParams& a, const FusedCrossSmem& smem,
                                       int rank, int producer) {
  const auto* stages = reinterpret_cast<const int4*>(a.stages + rank * a.num_stages);
  const auto* weights =
      static_cast<const char*>(a.mlp.weights) + static_cast<std::int64_t>(rank) * a.weight_bytes;
  int4 next = producer < a.num_stages ? __ldg(stages + producer) : int4{};
#pragma unroll 1
  for (int i = producer; i < a.num_stages; i += kWeightProducers) {
    const int4 stage = next;  // source, offset, bytes, wait
    if (i + kWeightProducers < a.num_stages) next = __ldg(stages + i + kWeightProducers);
    const int before = i - kMaxStages;
    if (before >= 0) mbarrier_wait(smem.empty(before), parity_of(before));
    if (stage.w > max(before, -1)) mbarrier_wait(smem.empty(stage.w), parity_of(stage.w));
    mbarrier_arrive_expect_tx(smem.full(i), stage.z);
    tma_bulk_load(smem.base + stage.y, weights + stage.x, stage.z, smem.full(i));
  }
}

// A consumer warp's position among the stages. The host-made table gives each stage's offset, as
// weights go wherever shared memory is free.
//
// Two stages' products are issued to the tensor cores, which multiply by the second while the warp
// waits for the first's end. From then on until the third is issued there is no time to lose: its
// offset is loaded before that wait; whether it is full is not asked ahead, which takes longer than
// it saves.
struct CrossWeightConsumer {
  const FusedCrossSmem& smem;
  std::uint32_t barriers = 0;
  std::uint32_t table = 0;  // of offsets: that of the stage behind `next`
  unsigned next = 0;
  std::uint32_t weights = 0;  // of stage `next`

  __device__ std::uint32_t full(unsigned stage) const {
    return barriers + 16 * (stage % kMaxStages);
  }
  __device__ void release(unsigned stage) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(full(stage) + 8);
  }

  // Once the table is in shared memory.
  __device__ void start() {
    barriers = smem.full(0);
    table = smem.base + smem.at.stages + offsetof(CrossWeightStage, offset);
    look_ahead();
  }
  // Behind the last stage it loads something else, which is not used.
  __device__ void look_ahead() {
    weights = smem.base + ld_shared_u32(table);
    table += sizeof(CrossWeightStage);
  }

  // sums = `steps` k-steps of input from x on by the next stages, or are added to.
  template <class T, int kTile>
  __device__ void multiply_half(std::uint64_t x, int steps, unsigned first_stage, bool add,
                                float (&sums)[kTile / 2]) {
    constexpr int kSteps = cross_stage_steps(kTile);
    constexpr int kGroupBytes = kTile / 8 * 128;
    const int warpgroup = warp_uniform(threadIdx.x / 128);
#pragma unroll 1
    for (int left = steps; left > 0; left -= kSteps) {
      const std::uint64_t w =
          wgmma_descriptor_no_swizzle(weights + warpgroup * kGroupBytes, 2 * kGroupBytes);
      mbarrier_wait(full(next), parity_of(next));
      if (left >= kSteps)
        mma_steps<T, kTile, kSteps>(x, w, add, sums);
      else if (left == kSteps - 1)
        mma_steps<T, kTile, kSteps - 1>(x, w, add, sums);
      else
        mma_steps<T, kTile, 1>(x, w, add, sums);
      add = true;
      x += kSteps * (2 * kChunkStride / 16);
      ++next;
      look_ahead();
      wgmma_wait<1>();
      if (next > first_stage + 1) release(next - 2);
    }
  }
};

// Sends each half of an input to the peer once it is written here, and signals the peer that its
// half has arrived; by one warp, since the consumer warpgroups have no time for it.
template <int kDeepTile>
__device__ void exchange_halves(const FusedCrossParams& a, const FusedCrossSmem& smem, int rank) {
  using B = FusedCrossBarriers;
  const auto at_peer = [&](std::uint32_t address) { return mapa(address, 1 - rank); };
  const int num_exchanges = a.tiling.num_deep + a.tiling.num_cross - 1;
#pragma unroll 1
  for (int exchange = 0; exchange < num_exchanges; ++exchange) {
    const bool is_h = exchange > 0 && exchange < a.tiling.num_deep;
    const InputHalves halves = is_h ? InputHalves{kDeepTile / 4, kDeepTile / 4}
                                    : InputHalves{a.mlp.x_chunks[0], a.mlp.x_chunks[1]};
    const int x = exchange == 0 ? 0 : is_h ? smem.at.h : smem.at.x;
    const std::uint32_t half = smem.base + x + halves.offset(rank);
    if (threadIdx.x % 32 == 0) {
      mbarrier_wait(smem.barrier<B::kHalfWritten>(), exchange & 1);
      if (exchange > 0) mbarrier_wait(smem.barrier<B::kPeerEmpty>(exchange), 0);
      tma_bulk_copy_to_cta(at_peer(half), half, halves.chunks(rank) * kChunkStride,
                           at_peer(smem.barrier<B::kPeerFull>(exchange)));
      mbarrier_wait(smem.barrier<B::kPeerFull>(exchange), 0);
      if (exchange < a.tiling.num_deep || exchange + 1 < num_exchanges)
        mbarrier_arrive_remote(at_peer(smem.barrier<B::kSent>(exchange)));
    }
    __syncwarp();
  }
}

// The consumer warpgroups' way through all layers.
template <class T, int kCrossTile, int kDeepTile>
struct CrossMainloop {
  using B = FusedCrossBarriers;

  const FusedCrossParams& a;
  const FusedCrossSmem& smem;
  int rank;
  CrossWeightConsumer weights{smem};
  float dots[2] = {};

  __device__ InputHalves x_halves() const { return {a.mlp.x_chunks[0], a.mlp.x_chunks[1]}; }
  __device__ std::uint32_t vectors() const { return smem.base + smem.at.vectors; }

  // Makes this thread's writes visible to wgmma and to the exchange warp.
  __device__ void publish() const {
    fence_proxy_async_shared();
    mbarrier_arrive(smem.barrier<B::kHalfWritten>());
    consumer_barrier();
  }

  // sums = the input at `x` by the next stages, or are added to; the own half first. The peer's
  // comes by `exchange`.
  template <int kTile>
  __device__ void multiply(std::uint32_t x, const InputHalves& halves, int exchange, bool adds,
                           float (&sums)[kTile / 2]) {
    const unsigned first_stage = weights.next;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const int half = rank ^ turn;
      if (turn == 1) mbarrier_wait(smem.barrier<B::kPeerFull>(exchange), 0);
      weights.multiply_half<T, kTile>(
          wgmma_descriptor_no_swizzle(x + halves.offset(half), kChunkStride),
          halves.chunks(half) / 2, first_stage, adds || turn > 0, sums);
    }
    wgmma_wait<0>();
    wgmma_fence_operands(sums);
  }

  // After a product that another follows: waits until exchange `sent` has been received, so that
  // its memory may be overwritten, by weights too, and no warp of the CTA reads the output's
  // memory. Exchange `output` sends the output; -1: there is none.
  __device__ void finish(int sent, int output) {
    mbarrier_wait(smem.barrier<B::kSent>(sent), 0);
    weights.release(weights.next - 1);
    if (output < 0) return;
    if (threadIdx.x % 32 == 0)
      mbarrier_arrive_remote(mapa(smem.barrier<B::kPeerEmpty>(output), 1 - rank));
    consumer_barrier();
  }

  __device__ void deep_layer(int layer) {
    const ConsumerThread thread;
    const InputHalves h_halves{kDeepTile / 4, kDeepTile / 4};
    const int quarter = rank * 2 + thread.warpgroup;
    const int width = quarter_width(a.mlp.widths[layer], quarter);
    const bool is_last = layer + 1 == a.tiling.num_deep;
    const std::uint32_t h = smem.base + smem.at.h;
    const std::uint32_t bias = vectors() + (a.tiling.num_cross + 1) * 2 * kCrossTile * 4 +
                               (layer * 2 + thread.warpgroup) * kDeepTile * 4 +
                               thread.first_column() * 4;
    float sums[kDeepTile / 2];
    leave_unset(sums);
    multiply<kDeepTile>(layer == 0 ? smem.base : h, layer == 0 ? x_halves() : h_halves, layer,
                        false, sums);
    finish(layer, is_last ? -1 : layer + 1);
    if (is_last) return add_relu_head<kDeepTile>(sums, bias, bias + 2 * kDeepTile * 4, width, dots);
    const std::uint32_t target =
        h + quarter * (kDeepTile / 8) * kChunkStride + thread.chunk_offset();
    store_relu<T, kDeepTile>(sums, bias, target);
    clear_padding<kDeepTile>(width, target);
    publish();
  }

  // products: of all layers so far.
  __device__ __forceinline__ void cross_layer(int layer, const std::uint32_t (&x0)[kCrossTile / 4],
                                              float (&products)[kCrossTile / 2]) {
    const ConsumerThread thread;
    const CrossChunks chunks(a.mlp, rank, thread.warpgroup);
    const int sent = a.tiling.num_deep - 1 + layer;
    const bool is_last = layer + 1 == a.tiling.num_cross;
    const std::uint32_t x = smem.base + smem.at.x;
    const std::uint32_t target = x + chunks.offset(thread);
    const std::uint32_t bias =
        vectors() + (layer * 2 + thread.warpgroup) * kCrossTile * 4 + thread.first_column() * 4;
    multiply<kCrossTile>(layer == 0 ? smem.base : x, x_halves(), layer == 0 ? 0 : sent, layer > 0,
                         products);
    if (is_last)
      return add_cross_head<T, kCrossTile>(products, x0, bias, bias + 2 * kCrossTile * 4,
                                           chunks.count, dots);
    finish(sent, sent + 1);
    store_cross<T, kCrossTile>(products, x0, bias, target, chunks.count);
    if (a.mlp.zero_chunk[rank] >= 0 && threadIdx.x < kTileSamples)
      st_shared_v4(x + a.mlp.zero_chunk[rank] * kChunkStride + threadIdx.x * 16, {});
    publish();
  }

  __device__ void run() {
    const ConsumerThread thread;
    publish();
    mbarrier_wait(smem.barrier<B::kVectorsFull>(), 0);
    weights.start();
#pragma unroll 1
    for (int layer = 0; layer < a.tiling.num_deep; ++layer) deep_layer(layer);
    const CrossChunks chunks(a.mlp, rank, thread.warpgroup);
    std::uint32_t x0[kCrossTile / 4];
    load_pairs<kCrossTile>(smem.base + chunks.offset(thread), chunks.count, x0);
    float products[kCrossTile / 2] = {};
#pragma unroll 1
    for (int layer = 0; layer < a.tiling.num_cross; ++layer) cross_layer(layer, x0, products);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float dot = quad_sum(dots[r]);
      if (thread.lane % 4 == 0)
        smem.send_to_score(smem.at.dots, rank * 2 + thread.warpgroup, thread.first_sample() + 8 * r,
                           dot);
    }
    __syncwarp();
  }
};

}  // namespace dpiframe
