// Where things lie in the one-kernel forward pass of a float32 model with cross layers
// (forward_split.h): pure functions of a model's shapes.
//
// A cluster is two blocks and owns 64 rows at a time, a block two warpgroups that multiply: four
// quarters of each level's output columns. Columns are counted in strips of 16: quarter q of
// `strips` strips has those from forward_split_first(strips, q) on; quarters 0 and 1 are block 0's.
// An activation is two float16, large and small, times a power of two of its own for each row of a
// quarter. A quarter of activations lies in shared memory as its strips, each [large or small, 2
// chunks of 8 columns, 64 rows, 8], then the 64 rows' inverse powers of two, float32.
//
// Order: the first deep level, whose output waits in global memory; the cross layers, each in the
// place of the one before; the other deep levels, whose quarters lie where those of x were.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/forward_layout.h"

namespace dpiframe {

constexpr int kSplitStrip = 16;      // columns
constexpr int kSplitMaxLevels = 4;   // of either kind
constexpr int kSplitMostPieces = 8;  // of weights, on their way or in use
constexpr int kSplitBarriers = 12;   // beside those of pieces
constexpr int kSplitStripBytes = 2 * 2 * kForwardRows * 16;
constexpr int kSplitScaleBytes = kForwardRows * 4;

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
  std::int32_t ids_row;
  std::int32_t unused;
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

// 16 columns of k of one product's weights, large or small, for one block: one copy.
// A piece's columns are both of the block's tiles, those of each 16 permuted
// (forward_split_column); it is [2 chunks of 8 columns of k, 2 tile, 8] float16.
struct alignas(16) ForwardSplitPiece {
  std::uint32_t source;  // bytes from the start of the block's weights
  std::uint32_t place;   // in the ring
  std::int32_t bytes;
  std::int32_t behind;  // so many pieces behind one whose products must be done
};

// Bytes from the start of a block's shared memory; activations are at 0.
struct ForwardSplitShared {
  int ring;  // weights: pieces one behind the other
  int ring_bytes;
  int vectors;  // of a product: biases of the block's two tiles, inverse powers of two, the head
  int values;   // [6, 32] of the rows that the block scores: four quarters' dots, two wide sums
  int barriers;
  int bytes;
};

struct ForwardSplitArguments {
  ForwardSplitForm form;
  ForwardSplitShared shared;
  const void* weights;            // of block 0, then of block 1, in the order of their use
  const float* vectors;           // of block 0, then of block 1: of each product as in shared
  const ForwardSplitPart* parts;  // of x0's columns, whole strips
  const ForwardSplitField* fields;
  const ForwardSplitPiece* pieces;  // of a tile of rows, in the order of their use
  unsigned* tickets;                // 0 between launches
  char* scratch;
  std::int64_t report;
  int num_report;
  int num_fields;
  int num_pieces;
  int weight_bytes;   // of a block
  int vector_floats;  // of a block
  int scratch_bytes;  // of a block
  float bias;
};

// The first strip of a quarter of `strips`; of the fifth: `strips`.
DPIF_EVERYWHERE constexpr int forward_split_first(int strips, int quarter) {
  return (strips * quarter + 3) / 4;
}
DPIF_EVERYWHERE constexpr int forward_split_count(int strips, int quarter) {
  return forward_split_first(strips, quarter + 1) - forward_split_first(strips, quarter);
}
// The column of a strip whose weights are row `place` of the 16 that a wgmma has: so a thread's
// sums (2 t + {0, 1} of either 8) are four neighbours.
DPIF_EVERYWHERE constexpr int forward_split_column(int place) {
  return place % 8 / 2 * 4 + place / 8 * 2 + place % 2;
}
// From the start of activations to a quarter of x; those of h lie there, too.
DPIF_EVERYWHERE constexpr int forward_split_place(int x_strips, int quarter) {
  return forward_split_first(x_strips, quarter) * kSplitStripBytes + quarter * kSplitScaleBytes;
}
DPIF_EVERYWHERE constexpr int forward_split_quarter_bytes(int strips, int quarter) {
  return forward_split_count(strips, quarter) * kSplitStripBytes + kSplitScaleBytes;
}
DPIF_EVERYWHERE constexpr int forward_split_piece_bytes(int tile) {
  return 2 * tile * kSplitStrip * 2;
}
DPIF_EVERYWHERE constexpr int forward_split_vector_bytes(int tile) {
  return 3 * 2 * tile * 4;
}
// Of a block's scratch: each thread's own x0, 16 bytes at a time; then its quarters of the first
// deep level's output, as in shared memory.
DPIF_EVERYWHERE constexpr int forward_split_x0_bytes(int cross_tile) {
  return 2 * (cross_tile / kSplitStrip) * 2 * 128 * 16;
}
DPIF_EVERYWHERE constexpr int forward_split_h_place(const ForwardSplitForm& form, int group) {
  return forward_split_x0_bytes(form.cross_tile) +
         group * (form.deep_tile / kSplitStrip * kSplitStripBytes + kSplitScaleBytes);
}
DPIF_EVERYWHERE constexpr int forward_split_scratch_bytes(const ForwardSplitForm& form) {
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
std::vector<ForwardSplitPiece> forward_split_pieces(const ForwardSplitForm& form);

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
