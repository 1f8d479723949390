// The weights of the one-kernel forward pass with cross layers: pieces that two threads copy into
// shared memory, and the products of x by them.
//
// Pieces are used in order whatever the product. Barriers go round, places do not: where a piece
// lies and whose place it takes was worked out on the host (forward_cross_pieces.cpp).
#pragma once

#include "kernels/forward_cross_layout.h"
#include "kernels/forward_products.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kMultiplyingWarps = kMultiplyingThreads / 32;

// A block's shared memory by address.
struct CrossPlaces {
  const ForwardCrossShared& offsets;
  std::uint32_t base;

  __device__ std::uint32_t full(int piece) const {
    return base + offsets.barriers + 16 * (piece % kCrossPiecesAhead);
  }
  __device__ std::uint32_t empty(int piece) const { return full(piece) + 8; }
  // Of an exchange of halves with the other block: ours of its half is here; both of its
  // warpgroups are done with what our half overwrites; our half is there.
  __device__ std::uint32_t received(int exchange) const {
    return base + offsets.barriers + 16 * kCrossPiecesAhead + 8 * exchange;
  }
  __device__ std::uint32_t ready(int exchange) const {
    return received(kCrossMaxExchanges + exchange);
  }
  __device__ std::uint32_t taken(int exchange) const {
    return ready(kCrossMaxExchanges + exchange);
  }
  __device__ std::uint32_t vectors_there() const { return taken(kCrossMaxExchanges); }
  __device__ std::uint32_t looked_up() const { return taken(kCrossMaxExchanges + 1); }
  __device__ std::uint32_t to_score() const { return taken(kCrossMaxExchanges + 2); }
};

// What a thread adds to the score of one of the cluster's rows, to the block that scores it.
__device__ inline void store_for_row(const CrossPlaces& places, int array, int part, int row,
                                     float value) {
  store_in(address_in(places.base + array + (part * 32 + row % 32) * 4, row / 32), value,
           address_in(places.to_score(), row / 32));
}

__device__ inline int parity_of(int piece) {
  return piece / kCrossPiecesAhead % 2;
}

// By copying thread `filler`: every other piece of the block. The wait for the piece whose barrier
// it takes also tells that none before is in use; only so can a later one be waited for by parity.
__device__ inline void copy_pieces(const ForwardCrossArguments& a, const CrossPlaces& places,
                                   int rank, int filler) {
  const auto* pieces = reinterpret_cast<const int4*>(a.pieces + rank * a.num_pieces);
  const auto* weights =
      static_cast<const char*>(a.common.weights) + static_cast<std::int64_t>(rank) * a.weight_bytes;
  int4 next = filler < a.num_pieces ? __ldg(pieces + filler) : int4{};
#pragma unroll 1
  for (int i = filler; i < a.num_pieces; i += kForwardFillers) {
    const int4 piece = next;  // source, place, bytes, wait
    if (i + kForwardFillers < a.num_pieces) next = __ldg(pieces + i + kForwardFillers);
    const int before = i - kCrossPiecesAhead;
    if (before >= 0) barrier_wait(places.empty(before), parity_of(before));
    if (piece.w > max(before, -1)) barrier_wait(places.empty(piece.w), parity_of(piece.w));
    barrier_expect(places.full(i), piece.z);
    copy_in(places.base + piece.y, weights + piece.x, piece.z, places.full(i));
  }
}

// One warp's place among the pieces.
struct PieceStream {
  const CrossPlaces& places;
  int next = 0;

  __device__ std::uint32_t place_of_next() const {
    return load_word(places.base + places.offsets.pieces + next * sizeof(ForwardCrossPiece) + 4);
  }
  __device__ void release(int piece) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(places.empty(piece));
  }

  // sums += `steps` steps of activations from x on by the next pieces. The products of the piece
  // before are done when those of the next are on their way.
  template <class T, int kTile>
  __device__ void multiply_half(std::uint64_t x, int steps, int first_piece,
                                float (&sums)[kTile / 2]) {
    constexpr int kSteps = forward_cross_piece_steps(kTile);
    constexpr int kGroupBytes = kTile / 8 * 128;
    const int group = threadIdx.x / 128;
#pragma unroll 1
    for (int left = steps; left > 0; left -= kSteps) {
      const std::uint32_t place = places.base + place_of_next() + group * kGroupBytes;
      barrier_wait(places.full(next), parity_of(next));
      const std::uint64_t w = chunk_operand(place, 2 * kGroupBytes);
      const bool add = next > first_piece;
      if (left >= kSteps)
        multiply_steps<T, kTile, kSteps>(x, w, add, sums);
      else if (left == kSteps - 1)
        multiply_steps<T, kTile, kSteps - 1>(x, w, add, sums);
      else
        multiply_steps<T, kTile, 1>(x, w, add, sums);
      x += kSteps * (2 * kChunkStride / 16);
      wgmma_wait<1>();
      if (next > first_piece) release(next - 1);
      ++next;
    }
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
