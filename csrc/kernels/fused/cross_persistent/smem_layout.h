// Shared memory and arguments of the persistent fused cross kernel: pure functions of a model's
// shapes.
//
// A cluster of two CTAs owns 128 samples at a time: two panels of 64, each as in the fused cross
// kernel. Consumer warpgroup g of either CTA multiplies panel g and makes the CTA's half of every
// product's columns. Weights and vectors are the fused cross kernel's.
//
// Order: the first deep layer, whose output waits in global memory; the cross layers, each of which
// overwrites the previous; the other deep layers: h's own half overwrites x's peer half, which is
// free first, and h's peer half overwrites x's own.
#pragma once

#include "kernels/fused/cross/smem_layout.h"

namespace dpiframe {

constexpr int kPanels = 2;
constexpr int kPersistentSamples = kPanels * kTileSamples;  // of a cluster's tile

// Bytes from the start of a CTA's shared memory; panel g is at g * panel.
struct FusedCrossPersistentSmemLayout {
  int panel;         // bytes
  int ring;          // weights: stages of one k-step, one after the other
  int ring_bytes;    // a stage that would reach beyond begins at 0
  int vectors;       // two buffers: a product's biases for the CTA's columns, then its head
  int vector_bytes;  // of one buffer
  int slices;        // the CTA's own
  int values;        // [2 buffers, 4, 64]: what either CTA adds to the logits scored here
  int barriers;
  int bytes;
};

struct FusedCrossPersistentBarriers {
  // One for each panel.
  static constexpr BarrierGroup kX0Full{0, kPanels, 1};  // the CTA's half of x_0 is loaded
  static constexpr BarrierGroup kHFull{kX0Full.end(), kPanels, 1};  // the CTA's half of h is loaded
  // The peer's half of x_l or h_l has arrived.
  static constexpr BarrierGroup kPeerFull{kHFull.end(), kPanels, 1};
  // The peer has received our half; it may be overwritten.
  static constexpr BarrierGroup kSent{kPeerFull.end(), kPanels, 1};
  // The peer has finished reading the memory that our half overwrites there.
  static constexpr BarrierGroup kPeerEmpty{kSent.end(), kPanels, 4};
  // Both CTAs' h of the first deep layer is in global memory.
  static constexpr BarrierGroup kHStored{kPeerEmpty.end(), kPanels, 8};
  static constexpr BarrierGroup kX0Reloaded{kHStored.end(), kPanels, 1};  // x_0 replaced x_l
  // The CTA's half of x_l has been multiplied.
  static constexpr BarrierGroup kHalfRead{kX0Reloaded.end(), kPanels, 4};

  // One for each of two buffers, used alternately.
  static constexpr BarrierGroup kVectorsFull{kHalfRead.end(), 2, 1};  // a product's vectors
  static constexpr BarrierGroup kScoreFull{kVectorsFull.end(), 2,
                                           1};  // all parts of a tile's logits

  static constexpr BarrierGroup kTileGathered{kScoreFull.end(), 1, 64};  // tile's x_0 is in scratch
  // The tile's x_0 is in shared memory, and the previous tile is finished.
  static constexpr BarrierGroup kTileLoaded{kTileGathered.end(), 1, 8};
  static constexpr BarrierGroup kAllDone{kTileLoaded.end(), 1, 8};  // with the last tile
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
// A CTA's scratch, laid out as in shared memory: its half of h of both panels; then two buffers,
// used alternately, for its half of x_0 of both panels: of the tile that is multiplied and of the
// one that is gathered meanwhile.
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
