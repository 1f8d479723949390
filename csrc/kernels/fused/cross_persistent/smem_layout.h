// Where things lie in the one-kernel forward pass for large batches of a model with cross layers
// (forward_tall_hopper.h): pure functions of a model's shapes.
//
// A cluster is two blocks and owns 128 rows at a time: two panels of 64, each as in
// forward_cross_layout.h. Warpgroup g of either block multiplies panel g and makes the block's half
// of every product's columns. Weights and vectors are those of forward_cross.h as they lie there.
//
// Order: the first deep level, whose output waits in global memory; the cross layers, each in the
// place of the one before; the other deep levels, whose halves lie in the places of x's other
// halves: h's own half where x's other one was, which is free first.
#pragma once

#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/shared_ring.h"

namespace dpiframe {

constexpr int kTallRows = 2 * kForwardRows;       // of a cluster at a time
constexpr int kTallBarriers = 8 * 2 + 2 * 2 + 3;  // of each panel; by turns; of rows, the end

// Bytes from the start of a block's shared memory; panel g is at g * panel.
struct ForwardTallShared {
  int panel;         // bytes
  int ring;          // weights: pieces of one step of 16 columns of k, one behind the other
  int ring_bytes;    // a piece that would reach beyond begins at 0
  int vectors;       // by turns: a product's biases for the block's columns, then its head
  int vector_bytes;  // of a turn
  int fields;        // the block's own
  int values;  // [2, 4, 64] by turns: of the rows that the block scores, what either block adds
  int barriers;
  int bytes;
};

struct ForwardTallArguments {
  ForwardArguments common;
  ForwardCrossForm form;
  ForwardTallShared shared;
  const RingPiece* pieces;  // of a tile, in the order of their use: a step of 16 columns of k each
  int num_pieces;
  int weight_bytes;   // of a block
  int vector_floats;  // of a block
  int scratch_bytes;  // of a block
  char* scratch;
};

// Steps of 16 columns of k of a product.
DPIF_HOST_DEVICE constexpr int forward_tall_steps(const ForwardCrossForm& form, bool of_x) {
  return of_x ? (form.x_chunks[0] + form.x_chunks[1]) / 2 : forward_chunks(form.deep_tile) / 2;
}
// Of a block's scratch, as they lie in shared memory: a half of h of both panels; by turns, the
// half of x0 of both that a tile needs, and of the tile that is gathered meanwhile.
DPIF_HOST_DEVICE constexpr int forward_tall_h_bytes(const ForwardCrossForm& form) {
  return forward_chunks(form.deep_tile) / 2 * kChunkStride;
}
DPIF_HOST_DEVICE constexpr int forward_tall_rows_place(const ForwardCrossForm& form, int rank,
                                                      int turn, int panel) {
  return 2 * forward_tall_h_bytes(form) + (2 * turn + panel) * form.x_chunks[rank] * kChunkStride;
}
int forward_tall_scratch_bytes(const ForwardCrossForm& form);

// The weights of one tile after another, each from the ring's start.
std::vector<RingPiece> forward_tall_pieces(const ForwardCrossForm& form, int ring_bytes);

ForwardTallShared forward_tall_shared(const ForwardCrossForm& form, int most_parts);

// Parts of fields (forward_parts) that a block gathers, at most.
int forward_tall_parts(const ForwardCrossShape& shape);

// Whether a model that forward_cross_fits takes this kernel, too. A product must have more pieces
// than the ring takes: so neither warpgroup is ahead of the other by a product.
bool forward_tall_fits(const ForwardCrossForm& form, int most_parts);
// Whether it is faster than steps, too: tiles must not be padding for the most part.
bool forward_tall_pays(std::int64_t weights, std::int64_t padded);

}  // namespace dpiframe
