// Shared memory and arguments of the fused cross kernel: pure functions of a model's shapes.
//
// A CTA makes those columns of a cross layer that it gathered of x_0, so x_l lies as x_0 does: its
// chunks of 8 columns are shared between its two warpgroups. The deep layers' columns lie as in the
// fused MLP kernel.
//
// Products are made in one order: the deep layers, then the cross layers. From the bottom of a
// CTA's shared memory on are x_0, weights, and x_l; h_l is in the end of x_l's memory. Weights also
// go wherever nothing else is alive.
#pragma once

#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

constexpr int kMaxExchanges = 7;  // of halves: of x_0, of 3 deep layers, of 3 cross layers

// Tiling: the parameters from which all sizes follow.
struct FusedCrossTiling {
  int x_chunks[2];  // of x_0 in each half, even
  int num_cross;
  int cross_tile;  // columns of a warpgroup's products: its own first, then zeros
  int num_deep;
  int deep_tile;
};

// Bytes from the start of a CTA's shared memory; x_0 is at 0.
struct FusedCrossSmemLayout {
  int weights;    // behind x_0
  int x;          // x_l
  int h;          // h_l, whose end is x_l's
  int slices;     // the CTA's own; the end of x_l
  int vectors;    // [num_cross + 1, 2 cross_tile], [num_deep + 1, 2 deep_tile]: biases, then head
  int stages;     // the CTA's own
  int wide_sums;  // [4, 32]: of both CTAs' halves of the threads' samples
  int dots;       // [4, 32]: the quarters' parts of the head's dots
  int barriers;
  int bytes;
};

struct FusedCrossBarriers {
  // One for each exchange of halves.
  static constexpr BarrierGroup kPeerFull{0, kMaxExchanges, 1};  // the peer's half has arrived
  // Both of the peer's warpgroups have finished reading the memory that our half overwrites there.
  static constexpr BarrierGroup kPeerEmpty{kPeerFull.end(), kMaxExchanges, 8};
  // The peer has received our half; it may be overwritten.
  static constexpr BarrierGroup kSent{kPeerEmpty.end(), kMaxExchanges, 1};

  static constexpr BarrierGroup kVectorsFull{kSent.end(), 1, 1};
  static constexpr BarrierGroup kGathered{kVectorsFull.end(), 1, 256};
  static constexpr BarrierGroup kScoreFull{kGathered.end(), 1, 2};  // all parts of the CTA's logits
  // The CTA's half of the next exchange is written.
  static constexpr BarrierGroup kHalfWritten{kScoreFull.end(), 1, 256};
};

// One weight stage: a few k-steps of a product for one CTA, loaded by one TMA bulk copy.
struct alignas(16) CrossWeightStage {
  std::uint32_t source;  // bytes from the start of the CTA's weights
  std::uint32_t offset;  // in shared memory
  std::int32_t bytes;
  std::int32_t wait;  // the last stage that must have been consumed before; -1: none
};

struct FusedCrossParams {
  FusedMlpParams mlp;  // gather, deep layers, scores; all weights and vectors
  FusedCrossTiling tiling;
  FusedCrossSmemLayout smem;
  const CrossWeightStage* stages;  // of CTA 0, then of CTA 1
  int num_stages;                  // of a CTA
  int weight_bytes;                // of a CTA
};

// A product, of which `number` counts in the order in which they are made.
struct FusedCrossProduct {
  bool is_cross;
  int layer;  // of its kind
  int tile;
  int steps[2];  // k-steps of each half
};

// k-steps of a stage: 20 KB to 30 KB, issued to the tensor cores at once, so that there are few
// gaps between.
DPIF_HOST_DEVICE constexpr int cross_stage_steps(int tile) {
  return tile == 128 ? 2 : 3;
}

FusedCrossProduct fused_cross_product(const FusedCrossTiling& tiling, int number);
int fused_cross_num_stages(const FusedCrossTiling& tiling);
int fused_cross_vector_floats(const FusedCrossTiling& tiling);  // of a CTA
FusedCrossSmemLayout fused_cross_smem(const FusedCrossTiling& tiling);

// The stages of CTA `rank` in the order of their use, each where memory is free first. Empty: a
// product has room for less than two.
std::vector<CrossWeightStage> fused_cross_stages(const FusedCrossTiling& tiling, int rank);

}  // namespace dpiframe
