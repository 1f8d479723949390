// A block's shared memory in the one-kernel forward pass for float32, and products from there.
#pragma once

#include "kernels/fused/cross_fp16x3/smem_layout.h"
#include "kernels/fused/shared_ring.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// By address.
struct SplitPlaces {
  const ForwardSplitShared& offsets;
  std::uint32_t base;

  __device__ RingPlaces ring() const {
    return {base + offsets.ring, static_cast<std::uint32_t>(offsets.ring_bytes),
            base + offsets.barriers};
  }
  __device__ std::uint32_t value(int quarter, int row) const {
    return base + offsets.values + (quarter * 32 + row) * 4;
  }
  __device__ std::uint32_t barrier(int i) const { return ring().full(kRingMostPieces) + 8 * i; }
  // Of warpgroup g's quarters: the block's of h is here, from global memory; the other block's of x
  // or h is here; what we sent is taken; what is to be sent is written, or the place of x is free.
  __device__ std::uint32_t loaded(int g) const { return barrier(g); }
  __device__ std::uint32_t received(int g) const { return barrier(2 + g); }
  __device__ std::uint32_t taken(int g) const { return barrier(4 + g); }
  __device__ std::uint32_t written(int g) const { return barrier(6 + g); }
  // The other block is done with what our quarters lie over there; h of the first deep level is in
  // global memory, the block's and the other's; the block's x0 is; its last product of x is done;
  // all that belongs to a tile's scores is here; both blocks have scored it.
  __device__ std::uint32_t ready() const { return barrier(8); }
  __device__ std::uint32_t h_stored() const { return barrier(9); }
  __device__ std::uint32_t other_h_stored() const { return barrier(14); }
  __device__ std::uint32_t x0_stored() const { return barrier(10); }
  __device__ std::uint32_t x_done() const { return barrier(11); }
  __device__ std::uint32_t to_score() const { return barrier(12); }
  __device__ std::uint32_t scored() const { return barrier(13); }
};

constexpr int kSplitFillers = 6;  // threads that stream

// The tiles of rows of a cluster.
struct SplitTiles {
  int first;
  int stride;
  int end;

  __device__ explicit SplitTiles(std::int64_t batch)
      : first(static_cast<int>(blockIdx.x / 2)),
        stride(static_cast<int>(gridDim.x / 2)),
        end(static_cast<int>((batch + kForwardRows - 1) / kForwardRows)) {}

  __device__ int count() const { return (end - first + stride - 1) / stride; }
};

// A warp's way through what is streamed: products, of its warpgroup's tile of columns, and what
// follows them.
//
// kEachLeaves: each thread leaves a piece itself, if it has read it or left one of those that many
// threads that fill before. So each of these waits, before it fills where a thread has read, for
// that thread's own arrival: racecheck follows barriers from thread to thread, not over __syncwarp
// to a lane that arrives for its warp. It takes longer.
template <bool kEachLeaves>
struct SplitStream {
  RingWalk ring;
  std::uint32_t pending = 0;  // barrier of the piece whose products may be under way
  int singly = 0;             // pieces of the product that each thread leaves, if kEachLeaves

  // A product begins.
  __device__ void start() { singly = kSplitFillers; }

  // sums = `strips` strips of activations from x on by the next weights.
  template <int kTile>
  __device__ void multiply(std::uint32_t x, int strips, float (&sums)[kTile / 2]) {
    RingOperand large(x, 1024);
    bool add = false;
#pragma unroll 1
    for (; strips > 0; --strips) {
      if constexpr (forward_split_parts(kTile) == 2) {
        with_piece<kTile>([&](const RingOperand& w) {
          multiply<kTile>(large.behind(kSmallPart), w.behind(0), add, sums);
          multiply<kTile>(large.behind(0), w.behind(forward_split_part_bytes(kTile)), true, sums);
          multiply<kTile>(large.behind(0), w.behind(0), true, sums);
        });
      } else {
        with_piece<kTile>([&](const RingOperand& w) {
          multiply<kTile>(large.behind(kSmallPart), w.behind(0), add, sums);
          multiply<kTile>(large.behind(0), w.behind(0), true, sums);
        });
        with_piece<kTile>([&](const RingOperand& w) {
          multiply<kTile>(large.behind(0), w.behind(0), true, sums);
        });
      }
      add = true;
      large.low = kept(large.low + kSplitStripBytes / 16);
    }
    wgmma_wait<0>();
    wgmma_settle(sums);
    release();
    pending = 0;
  }

  // The next piece, no weights: where it is, once it is there; its barrier, for `leave`. Who does
  // not read it has to wait for it, too: then all are done with what had its barriers before.
  // Pieces are left in the order in which they came (place_in_ring).
  __device__ std::uint32_t take(int bytes, std::uint32_t& barrier) {
    ring.start(bytes);
    const std::uint32_t place = ring.piece;
    const int phase = ring.phase;
    barrier = ring.full;
    ring.advance(bytes);
    barrier_wait(barrier, phase);
    return place;
  }
  // By all of a warp's threads, which have read it.
  __device__ void leave(std::uint32_t barrier) const {
    __syncwarp();
    if (kEachLeaves || threadIdx.x % 32 == 0) barrier_arrive(barrier + 8);
  }

 private:
  static constexpr int kSmallPart = kSplitStripBytes / 2;  // of a strip, behind the large one

  template <int kTile>
  __device__ static void multiply(std::uint64_t x, std::uint64_t w, bool add,
                                  float (&sums)[kTile / 2]) {
    Wgmma<kTile>::template shared<__half>(sums, x, w, add);
  }
  // Of a piece that no thread has read.
  __device__ void release() {
    const bool is_first = threadIdx.x % 32 == 0;
    if constexpr (!kEachLeaves) {
      if (pending != 0 && is_first) barrier_arrive(pending + 8);
    } else if (pending != 0) {
      const bool is_single = --singly >= 0;
      if (is_single || is_first) barrier_arrive(pending + 8, is_single ? 1 : 32);
    }
  }
  // Gives the products by the next piece to the tensor cores; those but the last before are done,
  // then. With no branch but the wait's own: one that could leave a piece early, or a look at the
  // next piece, takes longer than it saves.
  template <int kTile, class Give>
  __device__ __forceinline__ void with_piece(const Give& give) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    constexpr int kPieceBytes = forward_split_parts(kTile) * forward_split_part_bytes(kTile);
    ring.start(kPieceBytes);
    const RingOperand w(ring.piece + threadIdx.x / 128 * kGroupBytes, 2 * kGroupBytes);
    barrier_wait(ring.full, ring.phase);
    wgmma_fence();
    give(w);
    wgmma_commit();
    const std::uint32_t used = ring.full;
    ring.advance(kPieceBytes);
    wgmma_wait<1>();
    release();
    pending = used;
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
