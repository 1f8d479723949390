// The weight pipeline of the persistent kernels: a ring of shared memory that a few producer
// threads fill, one stage after another, and both consumer warpgroups read.
//
// Stages are of any size, each behind the one before; one that would reach beyond the ring's end
// begins at its start. The host says for which stage before it each has to wait
// (assign_ring_offsets).
#pragma once

#include "cuda/racecheck.h"
#include "kernels/fused/barriers.cuh"
#include "kernels/fused/consumer.cuh"
#include "kernels/fused/layout.h"
#include "ptx/mbarrier.cuh"
#include "ptx/registers.cuh"
#include "ptx/tma.cuh"

namespace dpiframe {

struct WeightRing {
  std::uint32_t begin;
  std::uint32_t bytes;
  CtaBarriers barriers;
};

// By producer thread `producer` of kProducers: one in kProducers stages of all tiles, each as soon
// as what lay in its memory is consumed. source_of(source, tile): where a stage is read from;
// called then. The table of stages is read kAhead of the thread's own stages ahead. The wait for
// the stage whose barriers it takes over also implies that all earlier stages are free; otherwise
// parity waits on later ones are ambiguous.
template <int kProducers, int kAhead, class SourceOf>
__device__ void produce_stages(const WeightStage* stages, unsigned num_stages,
                               const WeightRing& ring, unsigned producer, unsigned tiles,
                               const SourceOf& source_of) {
  const auto* words = reinterpret_cast<const int4*>(stages);
  const unsigned all = tiles * num_stages;
  unsigned at = producer;  // in the tile
  int tile = 0;
  const auto look_up = [&](unsigned stage) {
    return __ldg(words + (stage < num_stages ? stage : stage - num_stages));
  };
  const auto wait_for = [&](unsigned stage) {
    mbarrier_wait(ring.barriers.empty(stage % kMaxStages), stage / kMaxStages & 1);
  };
  int4 next[kAhead];  // source, offset, bytes, distance
#pragma unroll
  for (int u = 0; u < kAhead; ++u) next[u] = look_up(producer + u * kProducers);
#pragma unroll 1
  for (unsigned round = producer; round < all; round += kAhead * kProducers) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const unsigned i = round + u * kProducers;
      if (i >= all) return;
      const auto distance = static_cast<unsigned>(next[u].w);
      if (i >= kMaxStages) wait_for(i - kMaxStages);
      if constexpr (kRacecheck)  // not only for the last stage that lay there
#pragma unroll 1
        for (unsigned before = kMaxStages - 1; before > distance; --before)
          if (i >= before) wait_for(i - before);
      if (i >= distance) wait_for(i - distance);
      const char* source = source_of(static_cast<std::uint32_t>(next[u].x), tile);
      const std::uint32_t full = ring.barriers.full(i % kMaxStages);
      mbarrier_arrive_expect_tx(full, next[u].z);
      tma_bulk_load(ring.begin + next[u].y, source, next[u].z, full);
      at += kProducers;
      if (at >= num_stages) {
        at -= num_stages;
        ++tile;
      }
      next[u] = look_up(at + (kAhead - 1) * kProducers);
    }
  }
}

// A consumer warp's position in the ring: the next stage's memory and its barriers.
struct RingPosition {
  std::uint32_t begin;
  std::uint32_t end;
  std::uint32_t barriers;
  std::uint32_t stage;
  std::uint32_t full;
  int phase = 0;

  __device__ explicit RingPosition(const WeightRing& ring)
      : begin(keep_in_register(ring.begin)),
        end(keep_in_register(begin + ring.bytes)),
        barriers(keep_in_register(ring.barriers.base)),
        stage(begin),
        full(barriers) {}
  // Of a stage of so many bytes.
  __device__ void start(int bytes) {
    if (stage + bytes > end) stage = begin;
  }
  __device__ void advance(int bytes) {
    stage += bytes;
    full += 16;
    if (full == barriers + 16 * kMaxStages) {
      full = barriers;
      phase ^= 1;
    }
  }
};

// A wgmma descriptor whose lower half changes from k-step to k-step.
struct SmemOperand {
  std::uint32_t low;
  std::uint32_t high;

  __device__ SmemOperand(std::uint32_t address, int k_stride) {
    const std::uint64_t descriptor = wgmma_descriptor_no_swizzle(address, k_stride);
    low = keep_in_register(static_cast<std::uint32_t>(descriptor));
    high = static_cast<std::uint32_t>(descriptor >> 32);
  }
  __device__ std::uint64_t at(int bytes) const {
    return static_cast<std::uint64_t>(high) << 32 | (low + bytes / 16);
  }
};

}  // namespace dpiframe
