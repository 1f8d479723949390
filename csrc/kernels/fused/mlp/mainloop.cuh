// The mainloop of the fused MLP kernel: a CTA makes its half of each layer's columns for the
// cluster's 64 samples, a warpgroup a quarter.
//
// Weights stream through a ring of stages in the order of their use whatever the layer, a few
// k-steps a stage. A CTA multiplies by its own half of the input first, while the peer's is still
// on its way.
#pragma once

#include "kernels/fused/barriers.cuh"
#include "kernels/fused/consumer.cuh"
#include "kernels/fused/mlp/smem_layout.h"
#include "kernels/fused/score.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"

namespace dpiframe {

constexpr int kWeightProducers = 2;  // threads, each in a warp of its own

// A CTA's shared memory by address.
struct FusedMlpSmem {
  FusedMlpSmemLayout at;
  std::uint32_t base;

  __device__ CtaBarriers barriers() const { return {base + at.barriers}; }
  __device__ std::uint32_t input(int layer) const { return base + (layer % 2 == 0 ? 0 : at.h); }
  // Number `part` of `array`, of a sample of the tile, to the CTA that scores it.
  __device__ void send_to_score(int array, int part, int sample, float value) const {
    st_async(mapa(base + array + (part * 32 + sample % 32) * 4, sample / 32), value,
             mapa(barriers().at<FusedMlpBarriers::kScoreFull>(), sample / 32));
  }
};

// A warp's position in the ring. Producer and consumers compute it: from a table, as the kernels
// for cross layers have it, the first weights would be asked for later.
template <int kTile>
struct MlpWeightRing {
  const FusedMlpSmem& smem;
  int step = 0;  // of the stage
  int stage = 0;
  int phase = 0;

  static constexpr int kSteps = stage_steps(kTile);
  static constexpr int kStepBytes = weight_step_bytes(kTile);

  __device__ std::uint32_t weights() const {
    return smem.base + smem.at.ring + (stage * kSteps + step) * kStepBytes;
  }
  __device__ void advance() {
    step = 0;
    if (++stage == smem.at.stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ void release(int consumed) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem.barriers().empty(consumed));
  }

  // One of the producers: its stages of all k-steps.
  __device__ void produce(const char* source, int steps, int producer) {
    for (int skipped = 0; skipped < producer; ++skipped) advance();
#pragma unroll 1
    for (int first = producer * kSteps; first < steps; first += kWeightProducers * kSteps) {
      const int bytes = min(steps - first, kSteps) * kStepBytes;
      mbarrier_wait(smem.barriers().empty(stage), phase ^ 1);
      mbarrier_arrive_expect_tx(smem.barriers().full(stage), bytes);
      tma_bulk_load(weights(), source + first * kStepBytes, bytes, smem.barriers().full(stage));
      for (int skipped = 0; skipped < kWeightProducers; ++skipped) advance();
    }
  }

  // sums += `steps` k-steps of input from x on by the next weights. A stage's products are issued
  // at once; those of the stage before are done by then, and it is released.
  template <class T>
  __device__ void multiply_half(std::uint64_t x, int steps, bool is_first, int& pending,
                                float (&sums)[kTile / 2]) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    const int warpgroup = warp_uniform(threadIdx.x / 128);
#pragma unroll 1
    while (steps > 0) {
      if (step == 0) mbarrier_wait(smem.barriers().full(stage), phase);
      const std::uint64_t w =
          wgmma_descriptor_no_swizzle(weights() + warpgroup * kGroupBytes, 2 * kGroupBytes);
      const int count = min(steps, kSteps - step);
      if (count == kSteps) {
        mma_steps<T, kTile, kSteps>(x, w, !is_first, sums);
      } else {
#pragma unroll 1
        for (int i = 0; i < count; ++i)
          mma_steps<T, kTile, 1>(x + i * (2 * kChunkStride / 16), w + i * (kStepBytes / 16),
                                 !is_first || i > 0, sums);
      }
      x += count * (2 * kChunkStride / 16);
      is_first = false;
      steps -= count;
      step += count;
      if (step < kSteps) continue;
      wgmma_wait<1>();
      if (pending >= 0) release(pending);
      pending = stage;
      advance();
    }
  }

  // sums = both halves of a layer's input by the next weights; the own half first.
  template <class T>
  __device__ void multiply(int layer, const InputHalves& halves, int rank,
                           float (&sums)[kTile / 2]) {
    int pending = -1;  // the stage whose products may be under way
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const int half = rank ^ turn;
      if (turn == 1) mbarrier_wait(smem.barriers().at<FusedMlpBarriers::kPeerFull>(layer), 0);
      const std::uint32_t x = smem.input(layer) + halves.offset(half);
      multiply_half<T>(wgmma_descriptor_no_swizzle(x, kChunkStride), halves.chunks(half) / 2,
                       turn == 0, pending, sums);
    }
    wgmma_wait<0>();
    wgmma_fence_operands(sums);
    if (pending >= 0) release(pending);
  }
};

}  // namespace dpiframe
