// A block's shared memory in the one-kernel forward pass for float32, and products from there.
#pragma once

#include "kernels/forward_ring.cuh"
#include "kernels/forward_split_layout.h"

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
  __device__ std::uint32_t vectors() const { return base + offsets.vectors; }
  __device__ std::uint32_t value(int kind, int row) const {
    return base + offsets.values + (kind * 32 + row) * 4;
  }
  __device__ std::uint32_t barrier(int i) const { return ring().full(kRingMostPieces) + 8 * i; }
  // Of warpgroup g's quarters: the block's of h is here, from global memory; the other block's of x
  // or h is here; what we sent is taken.
  __device__ std::uint32_t loaded(int g) const { return barrier(g); }
  __device__ std::uint32_t received(int g) const { return barrier(2 + g); }
  __device__ std::uint32_t taken(int g) const { return barrier(4 + g); }
  // The other block is done with what our quarters lie over there; h of the first deep level is
  // stored, by both blocks; a product's vectors are here; all that belongs to a tile's scores is;
  // both blocks have scored it.
  __device__ std::uint32_t ready() const { return barrier(6); }
  __device__ std::uint32_t stored() const { return barrier(7); }
  __device__ std::uint32_t vectors_there() const { return barrier(8); }
  __device__ std::uint32_t to_score() const { return barrier(9); }
  __device__ std::uint32_t scored() const { return barrier(10); }
};

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

// A warp's products, of its warpgroup's tile of columns.
struct SplitProduct {
  RingWalk ring;
  std::uint32_t pending = 0;  // barrier of the piece whose products may be under way
  int left = 0;               // pieces of the product
  int is_there = 0;           // the next one

  // A product by `pieces` pieces begins.
  template <int kTile>
  __device__ void start(int pieces) {
    left = pieces;
    look_ahead<kTile>();
  }

  // sums = `steps` steps of activations from x on by the next weights. Next to nothing may lie
  // between products: tensor cores take one ahead. So the next piece is looked for before they are
  // given.
  template <int kTile>
  __device__ void multiply(std::uint32_t x, int steps, float (&sums)[kTile / 2]) {
    RingOperand large(x, 1024);
    bool add = false;
#pragma unroll 1
    for (; steps > 0; --steps) {
      with_piece<kTile>([&](std::uint64_t w) {
        Wgmma<kTile>::template shared<__half>(sums, large.behind(kSmallPart), w, add);
        Wgmma<kTile>::template shared<__half>(sums, large.behind(0), w, true);
      });
      with_piece<kTile>([&](std::uint64_t w) {
        Wgmma<kTile>::template shared<__half>(sums, large.behind(0), w, true);
      });
      add = true;
      large.low = kept(large.low + kSplitStripBytes / 16);
    }
    wgmma_wait<0>();
    wgmma_settle(sums);
    release();
    pending = 0;
  }

 private:
  static constexpr int kSmallPart = kSplitStripBytes / 2;  // of a strip, behind the large one

  template <int kTile>
  __device__ void look_ahead() {
    if (left == 0) return;
    ring.start(forward_split_piece_bytes(kTile));
    is_there = barrier_is_over(ring.full, ring.phase);
  }
  __device__ void release() const {
    if (pending != 0 && threadIdx.x % 32 == 0) barrier_arrive(pending + 8);
  }
  // Gives the products by the next piece to the tensor cores; those before are done, then.
  template <int kTile, class Give>
  __device__ void with_piece(const Give& give) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    const RingOperand w(ring.piece + threadIdx.x / 128 * kGroupBytes, 2 * kGroupBytes);
    const std::uint32_t used = ring.full;
    const int phase = ring.phase;
    const bool must_wait = !__all_sync(0xffffffffu, is_there);
    ring.advance(forward_split_piece_bytes(kTile));
    --left;
    look_ahead<kTile>();
    if (must_wait) {  // then what is used need not wait for it
      wgmma_wait<0>();
      release();
      pending = 0;
      barrier_wait(used, phase);
    }
    wgmma_fence();
    give(w.behind(0));
    wgmma_commit();
    wgmma_wait<1>();
    release();
    pending = used;
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
