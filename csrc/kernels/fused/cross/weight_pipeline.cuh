// The weights of the one-kernel forward pass with cross layers: pieces that two threads copy into
// shared memory, and the products of x by them.
//
// Pieces are used in order whatever the product. Barriers go round, places do not: where a piece
// lies and whose place it takes was worked out on the host (forward_cross_pieces.cpp).
#pragma once

#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/mlp/mainloop.cuh"

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
  // All of the block's half of what is sent next, by those that multiply.
  __device__ std::uint32_t written() const { return taken(kCrossMaxExchanges + 3); }
};

// What a thread adds to the score of one of the cluster's rows, to the block that scores it.
__device__ inline void store_for_row(const CrossPlaces& places, int array, int part, int row,
                                     float value) {
  store_in(address_in(places.base + array + (part * 32 + row % 32) * 4, row / 32), value,
           address_in(places.to_score(), row / 32));
}

__device__ inline unsigned parity_of(unsigned piece) {
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

// What the first product overwrites: to the compiler, numbers.
template <int kCount>
__device__ void leave_unset(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "=f"(sum));
}

// One warp's place among the pieces.
//
// Two pieces' products are given to the tensor cores, which multiply by the second while the warp
// waits for the first's end. From then on until the third is given there is no time to lose: where
// it lies is asked for before that wait; whether it is there is not, which takes longer than it
// saves.
struct PieceStream {
  const CrossPlaces& places;
  std::uint32_t barriers = 0;
  std::uint32_t table = 0;  // of places: that of the piece behind `next`
  unsigned next = 0;
  std::uint32_t place = 0;  // of `next`

  __device__ std::uint32_t full(unsigned piece) const {
    return barriers + 16 * (piece % kCrossPiecesAhead);
  }
  __device__ void release(unsigned piece) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(full(piece) + 8);
  }

  // Once the pieces' places are there.
  __device__ void start() {
    barriers = places.full(0);
    table = places.base + places.offsets.pieces + offsetof(ForwardCrossPiece, place);
    look_ahead();
  }
  // Behind the last piece the numbers are others', and are not used.
  __device__ void look_ahead() {
    place = places.base + load_word(table);
    table += sizeof(ForwardCrossPiece);
  }

  // sums = `steps` steps of activations from x on by the next pieces, or are added to.
  template <class T, int kTile>
  __device__ void multiply_half(std::uint64_t x, int steps, unsigned first_piece, bool add,
                                float (&sums)[kTile / 2]) {
    constexpr int kSteps = forward_cross_piece_steps(kTile);
    constexpr int kGroupBytes = kTile / 8 * 128;
    const int group = threadIdx.x / 128;
#pragma unroll 1
    for (int left = steps; left > 0; left -= kSteps) {
      const std::uint64_t w = chunk_operand(place + group * kGroupBytes, 2 * kGroupBytes);
      barrier_wait(full(next), parity_of(next));
      if (left >= kSteps)
        multiply_steps<T, kTile, kSteps>(x, w, add, sums);
      else if (left == kSteps - 1)
        multiply_steps<T, kTile, kSteps - 1>(x, w, add, sums);
      else
        multiply_steps<T, kTile, 1>(x, w, add, sums);
      add = true;
      x += kSteps * (2 * kChunkStride / 16);
      ++next;
      look_ahead();
      wgmma_wait<1>();
      if (next > first_piece + 1) release(next - 2);
    }
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
