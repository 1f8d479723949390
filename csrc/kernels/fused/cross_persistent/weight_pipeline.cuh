// The weights of the one-kernel forward pass for large batches: a ring of shared memory that two
// threads fill and both warpgroups use, and the products of a panel by them.
#pragma once

#include "kernels/fused/cross_persistent/smem_layout.h"
#include "kernels/fused/shared_ring.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// Generic writes of this thread to global memory come before bulk copies from there that are asked
// for behind a barrier.
__device__ inline void publish_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ inline char* forward_tall_scratch(const ForwardTallArguments& a, unsigned block) {
  return a.scratch + static_cast<std::size_t>(block) * a.scratch_bytes;
}

// A block's shared memory by address.
struct TallPlaces {
  const ForwardTallShared& offsets;
  std::uint32_t base;

  __device__ std::uint32_t panel(int g) const { return base + g * offsets.panel; }
  __device__ std::uint32_t vectors(int turn) const {
    return base + offsets.vectors + turn * offsets.vector_bytes;
  }
  __device__ std::uint32_t value(int turn, int kind, int row) const {
    return base + offsets.values + ((turn * 4 + kind) * kForwardRows + row) * 4;
  }
  __device__ RingPlaces ring() const {
    return {base + offsets.ring, static_cast<std::uint32_t>(offsets.ring_bytes),
            base + offsets.barriers};
  }
  __device__ std::uint32_t barrier(int i) const { return ring().full(kRingMostPieces) + 8 * i; }
  // Of panel g: its half of x0 is here, and its own half of h. The other half of x_l or h_l is
  // here; what we sent is taken; the other block is done with what that lay over; h of the first
  // deep level is stored, by both blocks; x0 is back; its half of x_l is multiplied.
  __device__ std::uint32_t gathered(int g) const { return barrier(g); }
  __device__ std::uint32_t loaded(int g) const { return barrier(2 + g); }
  __device__ std::uint32_t received(int g) const { return barrier(4 + g); }
  __device__ std::uint32_t taken(int g) const { return barrier(6 + g); }
  __device__ std::uint32_t ready(int g) const { return barrier(8 + g); }
  __device__ std::uint32_t stored(int g) const { return barrier(10 + g); }
  __device__ std::uint32_t x0_back(int g) const { return barrier(12 + g); }
  __device__ std::uint32_t multiplied(int g) const { return barrier(14 + g); }
  // By turns: a product's vectors are here; all that belongs to a tile's scores is.
  __device__ std::uint32_t vectors_there(int turn) const { return barrier(16 + turn); }
  __device__ std::uint32_t to_score(int turn) const { return barrier(18 + turn); }
  // A tile's rows are in global memory; they are here, and the tile before is multiplied.
  __device__ std::uint32_t rows_there() const { return barrier(20); }
  __device__ std::uint32_t rows_taken() const { return barrier(21); }
  __device__ std::uint32_t finished() const { return barrier(22); }  // with the last tile
};

// The tiles of a cluster.
struct TallTiles {
  int first;
  int stride;
  int end;

  __device__ explicit TallTiles(std::int64_t batch)
      : first(static_cast<int>(blockIdx.x / 2)),
        stride(static_cast<int>(gridDim.x / 2)),
        end(static_cast<int>((batch + kTallRows - 1) / kTallRows)) {}

  __device__ int count() const { return (end - first + stride - 1) / stride; }
};

// A warp's products of its warpgroup's panel.
struct TallProduct {
  RingWalk ring;
  std::uint32_t pending = 0;  // barrier of the piece whose products may be under way

  __device__ void release() {
    if (pending != 0 && threadIdx.x % 32 == 0) barrier_arrive(pending + 8);
  }

  // sums = `steps` steps of activations from x on by the next weights, or are added to, for both of
  // the block's tiles of columns. Next to nothing may lie between the products of two steps: tensor
  // cores take one ahead. A look at the next piece before the wait for it takes longer than it
  // saves.
  template <class T, int kTile>
  __device__ void multiply_half(std::uint32_t x_address, int steps, bool add,
                                float (&sums)[2][kTile / 2]) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    constexpr int kBytes = forward_step_bytes(kTile);
    RingOperand x(x_address, kChunkStride);
#pragma unroll 1
    for (; steps > 0; --steps) {
      ring.start(kBytes);
      const RingOperand w(ring.piece, 2 * kGroupBytes);
      barrier_wait(ring.full, ring.phase);
      wgmma_fence();
      Wgmma<kTile>::template shared<T>(sums[0], x.behind(0), w.behind(0), add);
      Wgmma<kTile>::template shared<T>(sums[1], x.behind(0), w.behind(kGroupBytes), add);
      wgmma_commit();
      const std::uint32_t used = ring.full;
      ring.advance(kBytes);
      add = true;
      x.low = kept(x.low + 2 * kChunkStride / 16);
      wgmma_wait<1>();
      release();
      pending = used;
    }
  }

  template <int kTile>
  __device__ void finish(float (&sums)[2][kTile / 2]) {
    wgmma_wait<0>();
    wgmma_settle(sums[0]);
    wgmma_settle(sums[1]);
    release();
    pending = 0;
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
