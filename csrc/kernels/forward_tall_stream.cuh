// The weights of the one-kernel forward pass for large batches: a ring of shared memory that two
// threads fill and both warpgroups use, and the products of a panel by them.
#pragma once

#include "kernels/forward_products.cuh"
#include "kernels/forward_tall_layout.h"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kTallMultiplyingWarps = 8;

// Generic writes of this thread to global memory come before bulk copies from there that are asked
// for behind a barrier.
__device__ inline void publish_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
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
  __device__ std::uint32_t full(int i) const { return base + offsets.barriers + 16 * i; }
  __device__ std::uint32_t empty(int i) const { return full(i) + 8; }
  __device__ std::uint32_t barrier(int i) const { return full(kTallMostPieces) + 8 * i; }
  // Of panel g: its half of x0 is here, and its own half of h. The other half of x_l or h_l is
  // here; what we sent is taken; the other block is done with what that lay over; h of the first
  // deep level is stored, by both blocks.
  __device__ std::uint32_t gathered(int g) const { return barrier(g); }
  __device__ std::uint32_t loaded(int g) const { return barrier(2 + g); }
  __device__ std::uint32_t received(int g) const { return barrier(4 + g); }
  __device__ std::uint32_t taken(int g) const { return barrier(6 + g); }
  __device__ std::uint32_t ready(int g) const { return barrier(8 + g); }
  __device__ std::uint32_t stored(int g) const { return barrier(10 + g); }
  // By turns: a product's vectors are here; all that belongs to a tile's scores is.
  __device__ std::uint32_t vectors_there(int turn) const { return barrier(12 + turn); }
  __device__ std::uint32_t to_score(int turn) const { return barrier(14 + turn); }
  // A tile's rows are in global memory; they are here, and the tile before is multiplied.
  __device__ std::uint32_t rows_there() const { return barrier(16); }
  __device__ std::uint32_t rows_taken() const { return barrier(17); }
  __device__ std::uint32_t finished() const { return barrier(18); }  // with the last tile
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

// By copying thread `filler`: every other piece of all tiles' weights, as soon as what lay in its
// place is used. The wait for the piece whose barriers it takes also tells that none before is in
// use; only so can a later one be waited for by parity.
__device__ inline void fill_ring(const ForwardTallArguments& a, const TallPlaces& places, int rank,
                                 int filler, int tiles) {
  const auto* pieces = reinterpret_cast<const int4*>(a.pieces);
  const auto* weights =
      static_cast<const char*>(a.common.weights) + static_cast<std::int64_t>(rank) * a.weight_bytes;
  const std::uint32_t ring = places.base + places.offsets.ring;
  int at = filler;  // in the tile
  int4 next = __ldg(pieces + at);
#pragma unroll 1
  for (int i = filler; i < tiles * a.num_pieces; i += 2) {
    const int4 piece = next;  // source, place, bytes, behind
    at += 2;
    if (at >= a.num_pieces) at -= a.num_pieces;
    next = __ldg(pieces + at);
    for (int behind : {kTallMostPieces, piece.w})
      if (i >= behind)
        barrier_wait(places.empty((i - behind) % kTallMostPieces),
                     (i - behind) / kTallMostPieces & 1);
    const std::uint32_t full = places.full(i % kTallMostPieces);
    barrier_expect(full, piece.z);
    copy_in(ring + piece.y, weights + piece.x, piece.z, full);
  }
}

// What the compiler is to keep in a register, and not to work out again at each use.
__device__ inline std::uint32_t kept(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The next piece's address and its barriers.
struct TallRing {
  std::uint32_t begin;
  std::uint32_t end;
  std::uint32_t barriers;
  std::uint32_t piece;
  std::uint32_t full;
  int phase = 0;  // of the barriers

  __device__ explicit TallRing(const TallPlaces& places)
      : begin(kept(places.base + places.offsets.ring)),
        end(kept(begin + places.offsets.ring_bytes)),
        barriers(kept(places.full(0))),
        piece(begin),
        full(barriers) {}
  __device__ void start(int bytes) {
    if (piece + bytes > end) piece = begin;
  }
  __device__ void advance(int bytes) {
    piece += bytes;
    full += 16;
    if (full == barriers + 16 * kTallMostPieces) {
      full = barriers;
      phase ^= 1;
    }
  }
};

__device__ inline int barrier_is_over(std::uint32_t barrier, int parity) {
  int is_over;
  asm volatile(
      "{.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;}"
      : "=r"(is_over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_over;
}

// An operand of wgmma whose lower half changes from step to step.
struct TallOperand {
  std::uint32_t low;
  std::uint32_t high;

  __device__ TallOperand(std::uint32_t address, int chunk_bytes) {
    const std::uint64_t operand = chunk_operand(address, chunk_bytes);
    low = kept(static_cast<std::uint32_t>(operand));
    high = static_cast<std::uint32_t>(operand >> 32);
  }
  __device__ std::uint64_t behind(int bytes) const {
    return static_cast<std::uint64_t>(high) << 32 | (low + bytes / 16);
  }
};

// A warp's products of its warpgroup's panel.
struct TallProduct {
  TallRing ring;
  std::uint32_t pending = 0;  // barrier of the piece whose products may be under way

  __device__ void release() {
    if (pending != 0 && threadIdx.x % 32 == 0) barrier_arrive(pending + 8);
  }

  // sums += `steps` steps of activations from x on by the next weights, for both of the block's
  // tiles of columns. Next to nothing may lie between the products of two steps: tensor cores take
  // one ahead. So the next piece is looked for before they are given, its place worked out behind.
  template <class T, int kTile>
  __device__ void multiply_half(std::uint32_t x_address, int steps, bool add,
                                float (&sums)[2][kTile / 2]) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    constexpr int kBytes = forward_step_bytes(kTile);
    ring.start(kBytes);
    TallOperand x(x_address, kChunkStride);
    int is_there = barrier_is_over(ring.full, ring.phase);
#pragma unroll 1
    for (; steps > 0; --steps) {
      const TallOperand w(ring.piece, 2 * kGroupBytes);
      const std::uint32_t used = ring.full;
      const int phase = ring.phase;
      const bool must_wait = !__all_sync(0xffffffffu, is_there);
      ring.advance(kBytes);
      if (steps > 1) {
        ring.start(kBytes);
        is_there = barrier_is_over(ring.full, ring.phase);
      }
      if (must_wait) {  // then what is used need not wait for it
        wgmma_wait<0>();
        release();
        pending = 0;
        barrier_wait(used, phase);
      }
      wgmma_fence();
      Wgmma<kTile>::template shared<T>(sums[0], x.behind(0), w.behind(0), add);
      Wgmma<kTile>::template shared<T>(sums[1], x.behind(0), w.behind(kGroupBytes), add);
      wgmma_commit();
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
