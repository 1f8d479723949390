// The ring of the one-kernel forward passes that take tiles of rows in turn: shared memory that a
// few threads fill with weights and the like, piece by piece, and both warpgroups use.
//
// Pieces are of any size, one behind the other; one that would reach beyond the end begins at the
// start. The host works out behind which piece each has to wait.
#pragma once

#include <cstdint>

#include "kernels/fused/mlp/mainloop.cuh"
#include "kernels/fused/shared_ring.h"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kRingUsers = 8;  // warps that use each piece and then leave it

struct RingPlaces {
  std::uint32_t begin;
  std::uint32_t bytes;
  std::uint32_t barriers;  // full and empty of each piece

  __device__ std::uint32_t full(int i) const { return barriers + 16 * i; }
  __device__ std::uint32_t empty(int i) const { return full(i) + 8; }
  // leaves: arrivals when all have left a piece.
  __device__ void init(int leaves) const {
    for (int i = 0; i < kRingMostPieces; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), leaves);
    }
  }
};

// By copying thread `filler` of kFillers: its pieces of all tiles, one in kFillers, as soon as what
// lay in their place is used. from(source, tile): where a piece is to be read; called then. Pieces
// are looked up kAhead of the thread's own before they are wanted.
// The wait for the piece whose barriers it takes also tells that none before is in use; only so can
// later ones be waited for by parity. kWaitsForEach: not only for the last of these that lay there.
template <int kFillers, int kAhead, bool kWaitsForEach, class From>
__device__ void fill_ring(const RingPiece* pieces, unsigned num_pieces, const RingPlaces& ring,
                          unsigned filler, unsigned tiles, const From& from) {
  const auto* words = reinterpret_cast<const int4*>(pieces);
  const unsigned all = tiles * num_pieces;
  unsigned at = filler;  // in the tile
  int tile = 0;
  const auto look_up = [&](unsigned piece) {
    return __ldg(words + (piece < num_pieces ? piece : piece - num_pieces));
  };
  const auto wait_for = [&](unsigned piece) {
    barrier_wait(ring.empty(piece % kRingMostPieces), piece / kRingMostPieces & 1);
  };
  int4 next[kAhead];  // source, place, bytes, behind
#pragma unroll
  for (int u = 0; u < kAhead; ++u) next[u] = look_up(filler + u * kFillers);
#pragma unroll 1
  for (unsigned round = filler; round < all; round += kAhead * kFillers) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const unsigned i = round + u * kFillers;
      if (i >= all) return;
      const auto behind = static_cast<unsigned>(next[u].w);
      if (i >= kRingMostPieces) wait_for(i - kRingMostPieces);
      if constexpr (kWaitsForEach)
#pragma unroll 1
        for (unsigned before = kRingMostPieces - 1; before > behind; --before)
          if (i >= before) wait_for(i - before);
      if (i >= behind) wait_for(i - behind);
      const char* source = from(static_cast<std::uint32_t>(next[u].x), tile);
      const std::uint32_t full = ring.full(i % kRingMostPieces);
      barrier_expect(full, next[u].z);
      copy_in(ring.begin + next[u].y, source, next[u].z, full);
      at += kFillers;
      if (at >= num_pieces) {
        at -= num_pieces;
        ++tile;
      }
      next[u] = look_up(at + (kAhead - 1) * kFillers);
    }
  }
}

// What the compiler is to keep in a register, and not to work out again at each use.
__device__ inline std::uint32_t kept(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A warp's way through the ring: the next piece's address and its barriers.
struct RingWalk {
  std::uint32_t begin;
  std::uint32_t end;
  std::uint32_t barriers;
  std::uint32_t piece;
  std::uint32_t full;
  int phase = 0;  // of the barriers

  __device__ explicit RingWalk(const RingPlaces& ring)
      : begin(kept(ring.begin)),
        end(kept(begin + ring.bytes)),
        barriers(kept(ring.barriers)),
        piece(begin),
        full(barriers) {}
  __device__ void start(int bytes) {
    if (piece + bytes > end) piece = begin;
  }
  __device__ void advance(int bytes) {
    piece += bytes;
    full += 16;
    if (full == barriers + 16 * kRingMostPieces) {
      full = barriers;
      phase ^= 1;
    }
  }
};

// An operand of wgmma whose lower half changes from step to step.
struct RingOperand {
  std::uint32_t low;
  std::uint32_t high;

  __device__ RingOperand(std::uint32_t address, int chunk_bytes) {
    const std::uint64_t operand = chunk_operand(address, chunk_bytes);
    low = kept(static_cast<std::uint32_t>(operand));
    high = static_cast<std::uint32_t>(operand >> 32);
  }
  __device__ std::uint64_t behind(int bytes) const {
    return static_cast<std::uint64_t>(high) << 32 | (low + bytes / 16);
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
