// The ring of shared memory through which the one-kernel forward passes that take tiles of rows in
// turn stream what they read (forward_ring.cuh): which piece goes where. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace dpiframe {

constexpr int kRingMostPieces = 8;  // on their way or in use

// One copy of a block's.
struct alignas(16) RingPiece {
  std::uint32_t source;  // bytes; what it counts from says the kernel
  std::uint32_t place;   // in the ring
  std::int32_t bytes;
  std::int32_t behind;  // so many pieces behind one that must have been used before
};

// Their places: one behind the other, one that would reach beyond the ring at its start; and
// `behind`, where the same pieces follow again and again, each time from the ring's start, and are
// done with in their order. At least kRingMostPieces.
void place_in_ring(std::vector<RingPiece>& pieces, int ring_bytes);

}  // namespace dpiframe
