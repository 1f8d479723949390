// Where things lie in the one-kernel forward pass of a model with cross layers (forward_cross.h):
// pure functions of a model's shapes.
//
// A cluster is two blocks, as in forward_layout.h. A block makes those columns of a cross layer
// that it gathered of x0, so that x_l lies as x0 does, without gaps: its chunks of 8 columns are
// shared between its two warpgroups. The deep levels' columns lie as in forward_layout.h.
//
// Products are made in one order: the deep levels, then the cross layers. From the bottom of a
// block's shared memory on lie x0, weights, and x_l; h_l lies in the end of x_l's place. Weights
// also go wherever nothing else is alive.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

constexpr int kCrossMaxLevels = 4;
constexpr int kCrossPiecesAhead = 8;   // barriers of pieces that are on their way or in use
constexpr int kCrossMaxExchanges = 7;  // halves of x0, of 3 deep levels, of 3 cross layers

// What all else follows from.
struct ForwardCrossForm {
  int x_chunks[2];  // of x0 in each half, even
  int num_cross;
  int cross_tile;  // columns of a warpgroup's products: its own first, then zeros
  int num_deep;
  int deep_tile;
};

// Bytes from the start of a block's shared memory; x0 is at 0.
struct ForwardCrossShared {
  int weights;  // behind x0
  int cross;    // x_l
  int deep;     // h_l, whose end is x_l's
  int fields;   // the block's own; the end of x_l
  int vectors;  // [num_cross + 1, 2 cross_tile], [num_deep + 1, 2 deep_tile]: biases, then the head
  int pieces;   // the block's own
  int sides;    // [4, 32]: wide sums of both blocks' halves
  int dots;     // [4, 32]: the head's parts
  int barriers;
  int bytes;
};

// A few steps of 16 columns of k of one product's weights, for one block: one copy.
struct alignas(16) ForwardCrossPiece {
  std::uint32_t source;  // bytes from the start of the block's weights
  std::uint32_t place;   // in shared memory
  std::int32_t bytes;
  std::int32_t wait;  // the last piece that must have been used before; -1: none
};

struct ForwardCrossArguments {
  ForwardArguments common;  // of lookup, deep levels and end; all weights and vectors
  ForwardCrossForm form;
  ForwardCrossShared shared;
  const ForwardCrossPiece* pieces;  // of block 0, then of block 1
  int num_pieces;                   // of a block
  int weight_bytes;                 // of a block
};

// A product, of which `number` counts in the order in which they are made.
struct ForwardCrossProduct {
  bool is_cross;
  int level;  // of its kind
  int tile;
  int steps[2];  // of 16 columns of k, in each half
};

// Of a piece: 20 KB to 30. Given to the tensor cores at once, so that there are few gaps between.
DPIF_HOST_DEVICE constexpr int forward_cross_piece_steps(int tile) {
  return tile == 128 ? 2 : 3;
}

ForwardCrossProduct forward_cross_product(const ForwardCrossForm& form, int number);
int forward_cross_num_pieces(const ForwardCrossForm& form);
int forward_cross_vector_floats(const ForwardCrossForm& form);  // of a block
ForwardCrossShared forward_cross_shared(const ForwardCrossForm& form);

// The pieces of a block in the order of their use. Empty: less than two of a product find place.
std::vector<ForwardCrossPiece> forward_cross_pieces(const ForwardCrossForm& form, int block);

// What decides whether a model fits.
struct ForwardCrossShape {
  std::vector<std::int64_t> dims;  // of the lookup's fields
  int num_cross;
  std::vector<int> columns;  // of the deep levels
  std::int64_t num_ids;      // rows of a batch's ids
  std::int64_t most_rows;    // of a table
};
// Its form; num_cross is 0 where it has none.
ForwardCrossForm forward_cross_form(const ForwardCrossShape& shape);
bool forward_cross_fits(const ForwardCrossShape& shape);

}  // namespace dpiframe
