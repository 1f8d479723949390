// Shared memory and arguments of the persistent fused cross kernel: pure functions of a model's
// shapes.
//
// A cluster of two CTAs owns 128 samples at a time: two panels of 64, each as in the fused cross
// kernel. Consumer warpgroup g of either CTA multiplies panel g and makes the CTA's half of every
// product's columns. Weights and vectors are the fused cross kernel's.
//
// Order: the first deep layer, whose output waits in global memory; the cross layers, each where
// the one before was; the other deep layers, whose halves are where x's other halves were: h's own
// half where x's other one was, which is free first.
#pragma once

#include "kernels/fused/cross/smem_layout.h"

namespace dpiframe {

constexpr int kPanels = 2;
constexpr int kPersistentSamples = kPanels * kTileSamples;  // of a cluster's tile

// Bytes from the start of a CTA's shared memory; panel g is at g * panel.
struct FusedCrossPersistentSmemLayout {
  int panel;         // bytes
  int ring;          // weights: stages of one k-step, one behind the other
  int ring_bytes;    // a stage that would reach beyond begins at 0
  int vectors;       // by turns: a product's biases for the CTA's columns, then its head
  int vector_bytes;  // of a turn
  int slices;        // the CTA's own
  int values;        // [2, 4, 64] by turns: what either CTA adds to the logits scored here
  int barriers;
  int bytes;
};

struct FusedCrossPersistentBarriers {
  // Of each panel: the CTA's half of x_0 is here; its own half of h is; the peer's half of x_l or
  // h_l is; our half is at the peer, and may be overwritten here; the peer is done with what our
  // half overwrites there; both CTAs' h of the first deep layer is in global memory; x_0 is here
  // again; the CTA's half of x_l is multiplied.
  static constexpr BarrierGroup kX0Full{0, kPanels, 1};
  static constexpr BarrierGroup kHFull{kX0Full.end(), kPanels, 1};
  static constexpr BarrierGroup kPeerFull{kHFull.end(), kPanels, 1};
  static constexpr BarrierGroup kSent{kPeerFull.end(), kPanels, 1};
  static constexpr BarrierGroup kPeerEmpty{kSent.end(), kPanels, 4};
  static constexpr BarrierGroup kHStored{kPeerEmpty.end(), kPanels, 8};
  static constexpr BarrierGroup kX0Again{kHStored.end(), kPanels, 1};
  static constexpr BarrierGroup kHalfRead{kX0Again.end(), kPanels, 4};
  // By turns: a product's vectors are here; all that belongs to a tile's scores is.
  static constexpr BarrierGroup kVectorsFull{kHalfRead.end(), 2, 1};
  static constexpr BarrierGroup kScoreFull{kVectorsFull.end(), 2, 1};
  // A tile's embedding rows are in global memory; they are here, and the tile before is done.
  static constexpr BarrierGroup kTileGathered{kScoreFull.end(), 1, 64};
  static constexpr BarrierGroup kTileTaken{kTileGathered.end(), 1, 8};
  static constexpr BarrierGroup kAllDone{kTileTaken.end(), 1, 8};  // with the last tile
};

struct FusedCrossPersistentParams {
  FusedMlpParams mlp;  // gather, deep layers, scores; all weights and vectors
  FusedCrossTiling tiling;
  FusedCrossPersistentSmemLayout smem;
  const WeightStage* stages;  // of a tile, in the order of their use
  int num_stages;
  int weight_bytes;   // of a CTA
  int vector_floats;  // of a CTA
  int scratch_bytes;  // of a CTA
  char* scratch;
};

// k-steps of a product of x, or of h.
DPIF_HOST_DEVICE constexpr int persistent_steps(const FusedCrossTiling& tiling, bool of_x) {
  return of_x ? (tiling.x_chunks[0] + tiling.x_chunks[1]) / 2 : output_chunks(tiling.deep_tile) / 2;
}
// A CTA's scratch, as in shared memory: a half of h of both panels; by turns, the half of x_0 of
// both of the tile that is multiplied and of the one that is gathered meanwhile.
DPIF_HOST_DEVICE constexpr int scratch_h_bytes(const FusedCrossTiling& tiling) {
  return output_chunks(tiling.deep_tile) / 2 * kChunkStride;
}
DPIF_HOST_DEVICE constexpr int scratch_x0_offset(const FusedCrossTiling& tiling, int rank, int turn,
                                                 int panel) {
  return 2 * scratch_h_bytes(tiling) + (2 * turn + panel) * tiling.x_chunks[rank] * kChunkStride;
}
int fused_cross_persistent_scratch_bytes(const FusedCrossTiling& tiling);

FusedCrossPersistentSmemLayout fused_cross_persistent_smem(const FusedCrossTiling& tiling,
                                                           int most_slices);
std::vector<WeightStage> fused_cross_persistent_stages(const FusedCrossTiling& tiling,
                                                       int ring_bytes);

}  // namespace dpiframe
