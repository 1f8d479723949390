// Where things lie in the one-kernel forward pass of a float32 model with cross layers
// (forward_split.h): pure functions of a model's shapes.
//
// A cluster is two blocks and owns 64 rows at a time, a block two warpgroups that multiply: four
// quarters of each level's output columns. Columns are counted in strips of 16: quarter q of
// `strips` strips has those from forward_split_first(strips, q) on; quarters 0 and 1 are block 0's.
// An activation is two float16, large and small, times a power of two of its own for each row of a
// quarter. A quarter of activations lies in shared memory as its strips, each [large or small, 2
// chunks of 8 columns, 64 rows, 8], the strip's columns permuted (forward_split_column), then the
// exponents, a byte each, of the 64 rows' inverse powers of two.
//
// Order: the first deep level, whose output waits in global memory; the cross layers, each in the
// place of the one before; the other deep levels, whose quarters lie where those of x were: a
// block's own where the other block's were, which are free first.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/fused/mlp/smem_layout.h"
#include "kernels/fused/shared_ring.h"

namespace dpiframe {

constexpr int kSplitStrip = 16;     // columns
constexpr int kSplitMaxLevels = 4;  // of either kind
constexpr int kSplitMaxStrips = 40;
constexpr int kSplitBarriers = 15;  // beside those of pieces
constexpr int kSplitChunkBytes = kForwardRows * 16;
constexpr int kSplitStripBytes = 2 * 2 * kSplitChunkBytes;
constexpr int kSplitScaleBytes = kForwardRows;
constexpr int kSplitWordBytes = 128 * 16;               // 16 bytes of each thread of a warpgroup
constexpr int kSplitX0Bytes = 2 * 2 * kSplitWordBytes;  // a block's numbers of a strip of x0
constexpr int kSplitPieceStrips = 4;                    // of x0 and a cross layer's vectors

// What all else follows from.
struct ForwardSplitForm {
  int x_strips;
  int cross_tile;  // columns of a warpgroup's products: its quarter's, then zeros
  int num_cross;
  int deep_tile;
  int num_deep;
  int h_strips[kSplitMaxLevels];  // of each deep level's output
};

// Four columns of a table's row: 16 bytes of x0.
struct alignas(16) ForwardSplitPart {
  const char* table;  // its first column of these
  std::uint32_t rows;
  std::uint32_t row_bytes;
  std::int64_t oov_row;  // -1: none
  std::int64_t ids_row;
};

// What is checked of a field's ids, and summed.
struct alignas(16) ForwardSplitField {
  const float* wide;     // or null
  std::int64_t oov_row;  // -1: none
  std::uint32_t rows;
  std::int32_t ids_row;
  const char* table;  // or null
  std::int64_t row_bytes;
};

// What a block's pieces are, of the ring of forward_ring.h; a source's upper two bits say which,
// and so what the others count from.
//   weights: 16 columns of k of one product's, large, small or both, of the block's; [2 chunks of 8
//     columns of k, 2 tile, 8] float16 each; those of k, and of both tiles' columns those of each
//     16, permuted (forward_split_column)
//   vectors: of the block's, of a few strips of a product: [3, 2, columns] float32, for both tiles
//     biases (of a cross layer with those of the layers before), inverse powers of two, and of the
//     last level the head, of other cross layers what leads to the next one's powers of two
//   own: of the block's scratch, x0 of a few strips: of each a word of each thread of either
//     warpgroup for either of its rows
// Each product's weights are followed by its vectors and, of a cross layer, x0: for the same strips
// vectors, then x0, and so on.
enum class SplitSource : std::uint32_t { kWeights, kVectors, kOwn };
constexpr int kSplitSourceBits = 30;

// Bytes from the start of a block's shared memory; activations are at 0.
struct ForwardSplitShared {
  int ring;
  int ring_bytes;
  int values;  // [4, 32] of the rows that the block scores: four quarters' dots
  int barriers;
  int bytes;
};

struct ForwardSplitArguments {
  ForwardSplitForm form;
  ForwardSplitShared shared;
  const void* weights;            // of block 0, then of block 1, in the order of their use
  const float* vectors;           // of block 0, then of block 1: of each product, as pieces
  const ForwardSplitPart* parts;  // of x0's columns, then some of which nothing is read
  const ForwardSplitField* fields;
  const RingPiece* pieces;  // of a tile of rows, in the order of their use
  unsigned* tickets;        // 0 between launches
  char* scratch;
  std::int64_t report;
  int num_report;
  int num_fields;
  int num_pieces;
  int weight_bytes;   // of a block
  int vector_floats;  // of a block
  int scratch_bytes;  // of a block
  float bias;
  std::uint16_t ids_rows[4 * kSplitMaxStrips];  // of each of `parts`
};

// The first strip of a quarter of `strips`; of the fifth: `strips`.
DPIF_HOST_DEVICE constexpr int forward_split_first(int strips, int quarter) {
  return (strips * quarter + 3) / 4;
}
DPIF_HOST_DEVICE constexpr int forward_split_count(int strips, int quarter) {
  return forward_split_first(strips, quarter + 1) - forward_split_first(strips, quarter);
}
// The column of a strip at `place` of the 16 that a wgmma has of n or of k: so a thread's sums
// (2 t + {0, 1} of either 8) are four neighbours, and it keeps them as words of its own.
DPIF_HOST_DEVICE constexpr int forward_split_column(int place) {
  return place % 8 / 2 * 4 + place / 8 * 2 + place % 2;
}
// From the start of activations to a quarter of x; quarter q of h lies where (q + 2) % 4 of x does.
DPIF_HOST_DEVICE constexpr int forward_split_place(int x_strips, int quarter) {
  return forward_split_first(x_strips, quarter) * kSplitStripBytes + quarter * kSplitScaleBytes;
}
DPIF_HOST_DEVICE constexpr int forward_split_quarter_bytes(int strips, int quarter) {
  return forward_split_count(strips, quarter) * kSplitStripBytes + kSplitScaleBytes;
}
// Large or small weights of 16 columns of k for both of a block's tiles.
DPIF_HOST_DEVICE constexpr int forward_split_part_bytes(int tile) {
  return 2 * tile * kSplitStrip * 2;
}
// A piece has both, where that is no more than the ring can have on its way beside what is in use.
DPIF_HOST_DEVICE constexpr int forward_split_parts(int tile) {
  return tile > 128 ? 1 : 2;
}
DPIF_HOST_DEVICE constexpr int forward_split_vector_bytes(int columns) {
  return 3 * 2 * columns * 4;
}
// The strips that a piece of a tile's vectors begins with, and one behind its last.
DPIF_HOST_DEVICE constexpr int forward_split_strips_end(int tile, int first) {
  const int end = first + kSplitPieceStrips;
  return end < tile / kSplitStrip ? end : tile / kSplitStrip;
}
// Of a block's scratch: each thread's own x0, four columns at a time: [strips, 2 warpgroups, a
// thread's 2 rows, 128, 4] float32; then its quarters of the first deep level's output, as in
// shared memory.
DPIF_HOST_DEVICE constexpr int forward_split_x0_bytes(int cross_tile) {
  return cross_tile / kSplitStrip * kSplitX0Bytes;
}
DPIF_HOST_DEVICE constexpr int forward_split_h_place(const ForwardSplitForm& form, int group) {
  return forward_split_x0_bytes(form.cross_tile) +
         group * (form.deep_tile / kSplitStrip * kSplitStripBytes + kSplitScaleBytes);
}
DPIF_HOST_DEVICE constexpr int forward_split_scratch_bytes(const ForwardSplitForm& form) {
  return forward_split_h_place(form, 2);
}

// A product of the order above.
struct ForwardSplitProduct {
  bool is_cross;
  int level;  // of its kind
  int tile;
  int in_strips;   // of k
  int out_strips;  // of n
};
std::vector<ForwardSplitProduct> forward_split_products(const ForwardSplitForm& form);

ForwardSplitShared forward_split_shared(const ForwardSplitForm& form);
// The pieces of either block; those of one tile of rows after another, each from the ring's start.
std::vector<RingPiece> forward_split_pieces(const ForwardSplitForm& form);

// What decides whether a model fits.
struct ForwardSplitShape {
  std::vector<std::int64_t> dims;  // of the lookup's fields
  int num_cross;
  std::vector<int> columns;  // of the deep levels
  std::int64_t num_ids;      // rows of a batch's ids
  std::int64_t most_rows;    // of a table
};
// Its form; num_cross is 0 where the model does not fit.
ForwardSplitForm forward_split_form(const ForwardSplitShape& shape);

}  // namespace dpiframe
