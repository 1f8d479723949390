// Shared memory and arguments of the fused MLP kernel: pure functions of a model's shapes.
//
// Of a quarter's `tile` columns its layer's own come first, then extra columns, then zeros.
#pragma once

#include "kernels/fused/layout.h"

namespace dpiframe {

constexpr int kMaxExtras = 32;
constexpr int kMaxShifts = 8;

// The kernels with cross layers use it for what they share: gather, MLP layers, scores.
struct FusedMlpParams {
  const void* weights;   // of CTA 0, then of CTA 1, in the order of their use
  const float* vectors;  // [2, layers + 1, 2 tile]: biases of each CTA's columns, then the head
  const FieldSlice* slices;
  unsigned* tickets;    // 0 between launches
  std::int64_t report;  // the lookup's counters in the batch's report
  int num_report;       // counters of the whole batch
  int num_fields;
  int tile;
  int num_layers;
  int widths[kMaxLayers];  // of each layer, without extras
  int x_chunks[2];         // of x_0 in each half, even
  int zero_chunk[2];       // of x_0, filled with zeros; -1: none
  int slices_end[2];       // behind each CTA's last slice
  int first_extra[5];      // of each quarter; then how many there are in all
  int has_fm;
  int num_shifts;  // the extras: a dot for each, c, and all others are FM's sums
  int has_cross;
  float shifts[kMaxShifts];
  float bias;
  std::uint16_t ids_rows[kMaxFieldSlices];  // of each of `slices`
};

// Bytes from the start of a CTA's shared memory; x_0 is at 0.
struct FusedMlpSmemLayout {
  int h;     // layers' outputs are in h and where x_0 is, in turn
  int ring;  // of weights: `stages` times stage_steps k-steps
  int stages;
  int slices;     // the CTA's own
  int vectors;    // [layers + 1, 2 tile]
  int wide_sums;  // [6, 32]: of both CTAs' halves of the threads' samples, then FM's squares
  int dots;       // [4, 32]: the quarters' parts of the head's dot
  int extras;     // [32, extras_stride]
  int extras_stride;
  int barriers;
  int bytes;
};

struct FusedMlpBarriers {
  // The peer's half of a layer's input is here.
  static constexpr BarrierGroup kPeerFull{0, kMaxLayers, 1};
  static constexpr BarrierGroup kVectorsFull{kPeerFull.end(), 1, 1};
  static constexpr BarrierGroup kGathered{kVectorsFull.end(), 1, 256};
  static constexpr BarrierGroup kSquared{kGathered.end(), 1, 1};
  // All that belongs to the CTA's scores is here.
  static constexpr BarrierGroup kScoreFull{kSquared.end(), 1, 2};
};

// k-steps of a stage: about 16 KiB, as much as L2 gives in the time that any copy takes.
DPIF_HOST_DEVICE constexpr int stage_steps(int tile) {
  return tile == 64 ? 4 : 2;
}

DPIF_HOST_DEVICE constexpr FusedMlpSmemLayout fused_mlp_smem(int tile, int num_layers, int x_chunks,
                                                             int num_extras) {
  FusedMlpSmemLayout s{};
  const int h_chunks = num_layers > 1 ? output_chunks(tile) : 0;
  s.h = (x_chunks > h_chunks || num_layers < 3 ? x_chunks : h_chunks) * kChunkStride;
  s.extras_stride = num_extras | 1;
  const int vector_bytes = (num_layers + 1) * 2 * tile * 4;
  const int extra_bytes = (32 * s.extras_stride * 4 + 15) / 16 * 16;
  const int mbarrier_bytes = kMbarrierBytes<FusedMlpBarriers::kScoreFull>;
  s.ring = (s.h + h_chunks * kChunkStride + 127) / 128 * 128;
  const int slice_bytes = kMaxFieldSlices / 2 * static_cast<int>(sizeof(FieldSlice));
  const int stage_bytes = stage_steps(tile) * weight_step_bytes(tile);
  const int others = slice_bytes + vector_bytes + 10 * 32 * 4 + extra_bytes + mbarrier_bytes;
  s.stages = (kMaxSmemBytes - s.ring - others) / stage_bytes;
  if (s.stages > kMaxStages) s.stages = kMaxStages;
  s.slices = s.ring + (s.stages > 0 ? s.stages : 0) * stage_bytes;
  s.vectors = s.slices + slice_bytes;
  s.wide_sums = s.vectors + vector_bytes;
  s.dots = s.wide_sums + 6 * 32 * 4;
  s.extras = s.dots + 4 * 32 * 4;
  s.barriers = s.extras + extra_bytes;
  s.bytes = s.barriers + mbarrier_bytes;
  return s;
}

}  // namespace dpiframe
