// Shared memory and arguments of the fused FP16x3 cross kernel: pure functions of a model's shapes.
//
// A cluster of two CTAs owns 64 samples at a time, a CTA has two consumer warpgroups: four quarters
// of each layer's output columns. Columns are counted in strips of 16, a k-step each: quarter q of
// `strips` strips has those from first_strip(strips, q) on; quarters 0 and 1 are CTA 0's.
// An activation is two float16, large and small, times a power of two of its own for each sample of
// a quarter. A quarter of activations is in shared memory as its strips, each [large or small, 2
// chunks of 8 columns, 64 samples, 8], the strip's columns permuted (strip_column), then the
// exponents, a byte each, of the 64 samples' inverse powers of two.
//
// Order: the first deep layer, whose output waits in global memory; the cross layers, each of which
// overwrites the previous; the other deep layers: a CTA's own quarters of h overwrite the peer's of
// x, which are free first.
#pragma once

#include "kernels/fused/layout.h"

namespace dpiframe {

constexpr int kStripColumns = 16;  // columns
constexpr int kMaxStrips = 40;
constexpr int kStripChunkBytes = kTileSamples * 16;
constexpr int kStripBytes = 2 * 2 * kStripChunkBytes;
constexpr int kScaleBytes = kTileSamples;
constexpr int kX0WordBytes = 128 * 16;               // 16 bytes of each thread of a warpgroup
constexpr int kX0StripBytes = 2 * 2 * kX0WordBytes;  // a CTA's numbers of a strip of x_0
constexpr int kEpilogueStrips = 4;                   // of x_0 and a cross layer's vectors, a stage

// Tiling: the parameters from which all sizes follow.
struct Fp16x3Tiling {
  int x_strips;
  int cross_tile;  // columns of a warpgroup's products: its quarter's, then zeros
  int num_cross;
  int deep_tile;
  int num_deep;
  int h_strips[kMaxLayers];  // of each deep layer's output
};

// Four columns of an embedding row: 16 bytes of x_0.
struct alignas(16) Fp16x3ColumnGroup {
  const char* table;  // its first column of these
  std::uint32_t rows;
  std::uint32_t row_bytes;
  std::int64_t oov_row;  // -1: none
  std::int64_t ids_row;
};

// What is checked of a field's ids, and summed.
struct alignas(16) Fp16x3Field {
  const float* wide;     // or null
  std::int64_t oov_row;  // -1: none
  std::uint32_t rows;
  std::int32_t ids_row;
  const char* table;  // or null
  std::int64_t row_bytes;
};

// What a stage holds; the upper two bits of its source say it, and so which base the others count
// from.
//   weights: one k-step of one product for the CTA, large, small or both parts, each
//     [2 chunks, 2 tile, 8 columns of k] float16; the 16 columns of k, and every 16 of the 2 tile
//     output columns, are permuted (strip_column)
//   vectors: [3, 2 warpgroups, columns] float32, of a few strips of a product: biases (of a cross
//     layer summed with those of the layers before), inverse powers of two, and the head (last
//     layer) or the factors to the next layer's powers of two (other cross layers)
//   x_0: [strips, 2 warpgroups, 2 samples, 128 threads, 4] float32, from the CTA's scratch
// Each product's weights are followed by its vectors and, of a cross layer, x_0: for the same
// strips vectors, then x_0, and so on.
enum class StageSource : std::uint32_t { kWeights, kVectors, kX0 };
constexpr int kSourceBits = 30;

// Bytes from the start of a CTA's shared memory; activations are at 0.
struct FusedCrossFp16x3SmemLayout {
  int ring;
  int ring_bytes;
  int values;  // [4, 32] of the samples that the CTA scores: four quarters' dots
  int barriers;
  int bytes;
};

struct FusedCrossFp16x3Barriers {
  // One for each warpgroup's quarter.
  static constexpr BarrierGroup kHFull{0, 2, 1};  // the CTA's of h is loaded from global memory
  static constexpr BarrierGroup kPeerFull{kHFull.end(), 2, 1};  // the peer's of x or h has arrived
  // The peer has received ours; it may be overwritten.
  static constexpr BarrierGroup kSent{kPeerFull.end(), 2, 1};
  // Ours is written and may be sent; after the last product of x: x may be overwritten.
  static constexpr BarrierGroup kWritten{kSent.end(), 2, 128};

  // The peer has finished reading the memory that our quarters overwrite there.
  static constexpr BarrierGroup kPeerEmpty{kWritten.end(), 1, 8};
  // The CTA's h of the first deep layer is in global memory.
  static constexpr BarrierGroup kHStored{kPeerEmpty.end(), 1, 8};
  static constexpr BarrierGroup kX0Stored{kHStored.end(), 1, 8};  // its x_0 is in global memory
  static constexpr BarrierGroup kXDone{kX0Stored.end(), 1, 8};    // its last product of x is done

  static constexpr BarrierGroup kScoreFull{kXDone.end(), 1, 1};   // all parts of a tile's logits
  static constexpr BarrierGroup kScored{kScoreFull.end(), 1, 2};  // both CTAs have scored the tile
  // The peer's h of the first deep layer is in global memory.
  static constexpr BarrierGroup kPeerHStored{kScored.end(), 1, 1};
};

struct FusedCrossFp16x3Params {
  Fp16x3Tiling tiling;
  FusedCrossFp16x3SmemLayout smem;
  const void* weights;              // of CTA 0, then of CTA 1, in the order of their use
  const float* vectors;             // of CTA 0, then of CTA 1: of each product, as stages
  const Fp16x3ColumnGroup* groups;  // of x_0's columns, then some of which nothing is read
  const Fp16x3Field* fields;
  const WeightStage* stages;  // of a tile, in the order of their use
  unsigned* tickets;          // 0 between launches
  char* scratch;
  std::int64_t report;
  int num_report;
  int num_fields;
  int num_stages;
  int weight_bytes;   // of a CTA
  int vector_floats;  // of a CTA
  int scratch_bytes;  // of a CTA
  float bias;
  std::uint16_t ids_rows[4 * kMaxStrips];  // of each of `groups`
};

// The first strip of a quarter of `strips`; of the fifth: `strips`.
DPIF_HOST_DEVICE constexpr int first_strip(int strips, int quarter) {
  return (strips * quarter + 3) / 4;
}
DPIF_HOST_DEVICE constexpr int strip_count(int strips, int quarter) {
  return first_strip(strips, quarter + 1) - first_strip(strips, quarter);
}
// The column of a strip at `position` of the 16 that a wgmma has of n or of k: so a thread's sums
// (2 t + {0, 1} of either 8) are four neighbours, and it keeps them as words of its own.
DPIF_HOST_DEVICE constexpr int strip_column(int position) {
  return position % 8 / 2 * 4 + position / 8 * 2 + position % 2;
}
// From the start of activations to a quarter of x; quarter q of h is where (q + 2) % 4 of x was.
DPIF_HOST_DEVICE constexpr int quarter_offset(int x_strips, int quarter) {
  return first_strip(x_strips, quarter) * kStripBytes + quarter * kScaleBytes;
}
DPIF_HOST_DEVICE constexpr int quarter_bytes(int strips, int quarter) {
  return strip_count(strips, quarter) * kStripBytes + kScaleBytes;
}
// Large or small weights of a k-step for both of a CTA's tiles.
DPIF_HOST_DEVICE constexpr int weight_part_bytes(int tile) {
  return 2 * tile * kStripColumns * 2;
}
// A stage has both, where the ring can have that on its way beside what is in use.
DPIF_HOST_DEVICE constexpr int parts_a_stage(int tile) {
  return tile > 128 ? 1 : 2;
}
DPIF_HOST_DEVICE constexpr int vector_stage_bytes(int columns) {
  return 3 * 2 * columns * 4;
}
// One behind the last strip of a stage of a tile's vectors that begins with strip `first`.
DPIF_HOST_DEVICE constexpr int epilogue_strips_end(int tile, int first) {
  const int end = first + kEpilogueStrips;
  return end < tile / kStripColumns ? end : tile / kStripColumns;
}
// A CTA's scratch: each thread's own x_0, four columns at a time: [strips, 2 warpgroups, a thread's
// 2 samples, 128, 4] float32; then its quarters of the first deep layer's output, as in shared
// memory.
DPIF_HOST_DEVICE constexpr int scratch_x0_bytes(int cross_tile) {
  return cross_tile / kStripColumns * kX0StripBytes;
}
DPIF_HOST_DEVICE constexpr int scratch_h_offset(const Fp16x3Tiling& tiling, int group) {
  return scratch_x0_bytes(tiling.cross_tile) +
         group * (tiling.deep_tile / kStripColumns * kStripBytes + kScaleBytes);
}
DPIF_HOST_DEVICE constexpr int fused_cross_fp16x3_scratch_bytes(const Fp16x3Tiling& tiling) {
  return scratch_h_offset(tiling, 2);
}

// A product of the order above.
struct Fp16x3Product {
  bool is_cross;
  int layer;  // of its kind
  int tile;
  int in_strips;   // of k
  int out_strips;  // of n
};
std::vector<Fp16x3Product> fp16x3_products(const Fp16x3Tiling& tiling);

FusedCrossFp16x3SmemLayout fused_cross_fp16x3_smem(const Fp16x3Tiling& tiling);
// The stages of a tile, the same for either CTA.
std::vector<WeightStage> fused_cross_fp16x3_stages(const Fp16x3Tiling& tiling);

}  // namespace dpiframe
