// The mainloop of the persistent fused cross kernel: one consumer warpgroup's products of its
// panel, in the order that smem_layout.h gives.
#pragma once

#include "kernels/fused/cross_persistent/epilogue.cuh"
#include "kernels/fused/cross_persistent/smem_layout.h"
#include "kernels/fused/score.cuh"
#include "kernels/fused/tile_scheduler.cuh"
#include "kernels/fused/weight_pipeline.cuh"
#include "ptx/cluster.cuh"
#include "ptx/named_barrier.cuh"

namespace dpiframe {

__device__ inline char* scratch_of(const FusedCrossPersistentParams& a, unsigned cta) {
  return a.scratch + static_cast<std::size_t>(cta) * a.scratch_bytes;
}

// A CTA's shared memory by address.
struct FusedCrossPersistentSmem {
  const FusedCrossPersistentSmemLayout& at;
  std::uint32_t base;

  __device__ std::uint32_t panel(int g) const { return base + g * at.panel; }
  __device__ std::uint32_t vectors(int turn) const {
    return base + at.vectors + turn * at.vector_bytes;
  }
  __device__ std::uint32_t value(int turn, int kind, int sample) const {
    return base + at.values + ((turn * 4 + kind) * kTileSamples + sample) * 4;
  }
  __device__ WeightRing ring() const {
    return {base + at.ring, static_cast<std::uint32_t>(at.ring_bytes), {base + at.barriers}};
  }
  template <BarrierGroup kGroup>
  __device__ std::uint32_t barrier(int i = 0) const {
    return ring().barriers.at<kGroup>(i);
  }
};

using TileScheduler = PersistentTileScheduler<kPersistentSamples>;

// A consumer warp's products of its panel.
struct PanelWeightConsumer {
  RingPosition ring;
  std::uint32_t pending = 0;  // barrier of the stage whose products may be under way

  __device__ void release() {
    if (pending != 0 && threadIdx.x % 32 == 0) mbarrier_arrive(pending + 8);
  }

  // sums = `steps` k-steps of input from x on by the next weights, or are added to, for both of the
  // CTA's tiles of columns. Next to nothing may come between the products of two steps: the tensor
  // cores take one ahead. A look at the next stage before the wait for it takes longer than it
  // saves.
  template <class T, int kTile>
  __device__ void multiply_half(std::uint32_t x_address, int steps, bool add,
                                float (&sums)[2][kTile / 2]) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    constexpr int kBytes = weight_step_bytes(kTile);
    SmemOperand x(x_address, kChunkStride);
#pragma unroll 1
    for (; steps > 0; --steps) {
      ring.start(kBytes);
      const SmemOperand w(ring.stage, 2 * kGroupBytes);
      mbarrier_wait(ring.full, ring.phase);
      wgmma_fence();
      Wgmma<kTile>::template ss<T>(sums[0], x.at(0), w.at(0), add);
      Wgmma<kTile>::template ss<T>(sums[1], x.at(0), w.at(kGroupBytes), add);
      wgmma_commit();
      const std::uint32_t used = ring.full;
      ring.advance(kBytes);
      add = true;
      x.low = keep_in_register(x.low + 2 * kChunkStride / 16);
      wgmma_wait<1>();
      release();
      pending = used;
    }
  }

  template <int kTile>
  __device__ void finish(float (&sums)[2][kTile / 2]) {
    wgmma_wait<0>();
    wgmma_fence_operands(sums[0]);
    wgmma_fence_operands(sums[1]);
    release();
    pending = 0;
  }
};

// The halves of an input in a panel: their chunks, and bytes from the panel's start. Chosen by
// conditions instead of arrays, which would be in local memory: a CTA that takes nearly all shared
// memory has next to no cache for it.
struct PanelHalves {
  int first_chunks;
  int second_chunks;
  int first_offset;
  int second_offset;

  __device__ int chunks(int half) const { return half == 0 ? first_chunks : second_chunks; }
  __device__ int offset(int half) const { return half == 0 ? first_offset : second_offset; }
};

// Synchronisation and copies between a panel's warpgroups in the two CTAs.
//
// An output overwrites its product's input. A warpgroup writes its CTA's half once all of it is
// done with the product and the peer has what was sent from there (kSent), and sends it once the
// peer's warpgroup of the same panel is done with the product, too (kPeerEmpty). Only x_0 is copied
// there earlier: once the CTA's half is multiplied and sent (reload_x0).
struct PanelExchange {
  using B = FusedCrossPersistentBarriers;

  const FusedCrossPersistentParams& a;
  const FusedCrossPersistentSmem& smem;
  int rank;
  int group = warp_uniform(threadIdx.x / 128);
  // Completed waits on kPeerFull, kPeerEmpty, kSent and kX0Reloaded; parity = & 1.
  int peer_full_uses = 0;
  int peer_empty_uses = 0;
  int sent_uses = 0;
  int x0_reload_uses = 0;

  __device__ void panel_barrier() const { named_barrier_sync<128>(group + 1); }
  // Of both warpgroups: stages would wait for the slower one.
  __device__ void keep_step() const { named_barrier_sync<4, 256>(); }
  __device__ bool is_leader() const { return threadIdx.x % 128 == 0; }
  __device__ bool is_first_lane() const { return threadIdx.x % 32 == 0; }
  __device__ std::uint32_t panel() const { return smem.panel(group); }
  __device__ int x_offset(int half) const {
    return half == 0 ? 0 : a.tiling.x_chunks[0] * kChunkStride;
  }
  __device__ PanelHalves x_halves() const {
    return {a.tiling.x_chunks[0], a.tiling.x_chunks[1], x_offset(0), x_offset(1)};
  }
  __device__ PanelHalves h_halves() const {
    const int half = output_chunks(a.tiling.deep_tile) / 2;
    return {half, half, x_offset(1), x_offset(0)};
  }

  __device__ char* h_of(unsigned cta) const {
    return scratch_of(a, cta) + group * scratch_h_bytes(a.tiling);
  }

  __device__ const char* x0_of(int n) const {
    return scratch_of(a, blockIdx.x) + scratch_x0_offset(a.tiling, rank, n & 1, group);
  }

  // Behind a product: the peer may overwrite its input.
  __device__ void release_to_peer() const {
    if (is_first_lane()) mbarrier_arrive_remote(mapa(smem.barrier<B::kPeerEmpty>(group), 1 - rank));
  }
  // Behind a product: until the CTA's half of its input may be overwritten here.
  __device__ void wait_until_sent(bool was_sent) {
    panel_barrier();
    if (was_sent) mbarrier_wait(smem.barrier<B::kSent>(group), sent_uses++ & 1);
  }
  // By one thread.
  __device__ void send_chunks(const PanelHalves& halves, int begin, int end) const {
    const std::uint32_t first = panel() + halves.offset(rank) + begin * kChunkStride;
    tma_bulk_copy_to_cta(mapa(first, 1 - rank), first, (end - begin) * kChunkStride,
                         mapa(smem.barrier<B::kPeerFull>(group), 1 - rank));
  }
  // Chunks of the CTA's half, from the first on; the last ones where is_last.
  __device__ void send(const PanelHalves& halves, int begin, int end, bool is_last) {
    fence_proxy_async_shared();
    panel_barrier();
    if (is_leader()) {
      if (begin == 0) mbarrier_wait(smem.barrier<B::kPeerEmpty>(group), peer_empty_uses & 1);
      send_chunks(halves, begin, end);
    }
    __syncwarp();
    if (is_last) ++peer_empty_uses;
  }

  // Behind a few k-steps of the peer's half: x_0 of tile n again, over the CTA's half of x_l.
  __device__ void reload_x0(int n) const {
    if (is_first_lane()) mbarrier_arrive(smem.barrier<B::kHalfRead>(group));
    if (is_leader()) {
      const int bytes = a.tiling.x_chunks[rank] * kChunkStride;
      mbarrier_wait(smem.barrier<B::kHalfRead>(group), x0_reload_uses & 1);
      mbarrier_wait(smem.barrier<B::kSent>(group), sent_uses & 1);
      mbarrier_arrive_expect_tx(smem.barrier<B::kX0Reloaded>(group), bytes);
      tma_bulk_load(panel() + x_offset(rank), x0_of(n), bytes, smem.barrier<B::kX0Reloaded>(group));
    }
    __syncwarp();
  }

  // Behind a panel's last product, and before its first: loads the CTA's half of tile n's x_0.
  __device__ void load_x0(int n, bool is_there) const {
    panel_barrier();
    if (is_there && is_leader()) {
      mbarrier_wait(smem.barrier<B::kTileGathered>(), n & 1);
      const int bytes = a.tiling.x_chunks[rank] * kChunkStride;
      mbarrier_arrive_expect_tx(smem.barrier<B::kX0Full>(group), bytes);
      tma_bulk_load(panel() + x_offset(rank), x0_of(n), bytes, smem.barrier<B::kX0Full>(group));
    }
    __syncwarp();
  }
  __device__ void release_tile() const {
    if (is_first_lane()) mbarrier_arrive(smem.barrier<B::kTileLoaded>());
  }
  // Waits for x_0, then sends this CTA's half once the peer has finished the previous tile.
  __device__ void take_tile(int n) {
    mbarrier_wait(smem.barrier<B::kX0Full>(group), n & 1);
    release_tile();
    if (is_leader()) {
      if (n > 0) mbarrier_wait(smem.barrier<B::kPeerEmpty>(group), peer_empty_uses & 1);
      send_chunks(x_halves(), 0, x_halves().chunks(rank));
    }
    __syncwarp();
    if (n > 0) ++peer_empty_uses;
  }

  // The first deep layer's output is in global memory, for TMA bulk copies of either CTA. Late,
  // when the stores are long done: the fences wait for them.
  __device__ void publish_h() const {
    fence_proxy_async_global();
    __syncwarp();
    if (!is_first_lane()) return;
    fence_acq_rel_cluster();
#pragma unroll
    for (int cta = 0; cta < 2; ++cta)
      mbarrier_arrive_remote(mapa(smem.barrier<B::kHStored>(group), cta));
  }
  __device__ void wait_for_stored_h(int n) const {
    mbarrier_wait_acquire_cluster(smem.barrier<B::kHStored>(group), n & 1);
    fence_proxy_async();
  }
  // A half of h from global memory, to where x is no longer read.
  __device__ void load_h(int half, std::uint32_t barrier) const {
    const unsigned cta = half == rank ? blockIdx.x : blockIdx.x ^ 1u;
    tma_bulk_load(panel() + h_halves().offset(half), h_of(cta), scratch_h_bytes(a.tiling), barrier);
  }
};

// k-steps of the peer's half of x_l before x_0 is asked for, and twice as many of the second
// warpgroup: weights come meanwhile, too.
constexpr int kStepsBeforeReload = 4;

// One consumer warpgroup's way through all tiles.
template <class T, int kCrossTile, int kDeepTile>
struct PersistentMainloop : PanelExchange {
  int turn = 0;  // products made so far
  PanelWeightConsumer weights{RingPosition(smem.ring())};

  // sums = the panel's input by the next weights, or are added to; the own half first.
  // wait_for_peer: the other half is still being copied; from_peer: by the peer. between: called
  // when the own half is multiplied and some of the other is issued to the tensor cores, if
  // kHasBetween; before_end: when all is.
  template <int kTile, bool kHasBetween, class Between, class BeforeEnd>
  __device__ void multiply(const PanelHalves& halves, bool adds, bool wait_for_peer, bool from_peer,
                           float (&sums)[2][kTile / 2], const Between& between,
                           const BeforeEnd& before_end) {
    keep_step();
    const int other = 1 - rank;
    if (wait_for_peer && is_leader())
      mbarrier_arrive_expect_tx(smem.barrier<B::kPeerFull>(group),
                                halves.chunks(other) * kChunkStride);
    const std::uint32_t own_half = panel() + halves.offset(rank);
    weights.template multiply_half<T, kTile>(own_half, halves.chunks(rank) / 2, adds, sums);
    if (wait_for_peer) mbarrier_wait(smem.barrier<B::kPeerFull>(group), peer_full_uses++ & 1);
    if (from_peer && is_leader())
      mbarrier_arrive_remote(mapa(smem.barrier<B::kSent>(group), other));
    const std::uint32_t other_half = panel() + halves.offset(other);
    const int steps = halves.chunks(other) / 2;
    int some = 0;
    if constexpr (kHasBetween) {
      some = max(1, min(kStepsBeforeReload * (1 + group), steps / 2));
      weights.template multiply_half<T, kTile>(other_half, some, true, sums);
      between();
    }
    weights.template multiply_half<T, kTile>(other_half + some * 2 * kChunkStride, steps - some,
                                             true, sums);
    before_end();
    weights.template finish<kTile>(sums);
  }

  // A product's biases and, where it is the last of its kind, head: to shared memory, for both
  // warpgroups. Those of the last but one are not used any more (fused_cross_persistent_fits).
  __device__ void load_vectors(bool is_cross, int layer) {
    const int tile = is_cross ? kCrossTile : kDeepTile;
    const int layers = is_cross ? a.tiling.num_cross : a.tiling.num_deep;
    const int first = is_cross ? 0 : (a.tiling.num_cross + 1) * 2 * kCrossTile;
    const int bytes = (layer + 1 == layers ? 4 : 2) * tile * 4;
    if (threadIdx.x == 0) {
      const std::uint32_t barrier = smem.barrier<B::kVectorsFull>(turn & 1);
      mbarrier_arrive_expect_tx(barrier, bytes);
      tma_bulk_load(smem.vectors(turn & 1),
                    a.mlp.vectors + rank * a.vector_floats + first + layer * 2 * tile, bytes,
                    barrier);
    }
    __syncwarp();
  }
  // The thread's first bias.
  __device__ std::uint32_t wait_for_vectors() {
    const std::uint32_t vectors = smem.vectors(turn & 1);
    mbarrier_wait(smem.barrier<B::kVectorsFull>(turn & 1), turn >> 1 & 1);
    ++turn;
    return vectors + ConsumerThread().first_column() * 4;
  }

  template <DeepLayer kLayer>
  __device__ void end_deep(const float (&sums)[2][kDeepTile / 2], int layer, float (&dots)[2]) {
    const ConsumerThread thread;
    constexpr int kTileBytes = kDeepTile / 8 * kChunkStride;
    const std::uint32_t vectors = keep_in_register(wait_for_vectors());
    const std::uint32_t h =
        keep_in_register(panel() + h_halves().offset(rank) + matrix_row_offset(thread));
    char* const stored = h_of(blockIdx.x) + thread.warp * 256 + thread.lane * 4;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      deep_tile<T, kDeepTile, kLayer>(sums[q], stored + q * kTileBytes, h + q * kTileBytes,
                                      vectors + q * kDeepTile * 4,
                                      quarter_width(a.mlp.widths[layer], rank * 2 + q), dots);
      if constexpr (kLayer == DeepLayer::kMiddle)
        send(h_halves(), q * (kDeepTile / 8), (q + 1) * (kDeepTile / 8), q == 1);
    }
  }
  template <bool kIsLast>
  __device__ void end_cross(const float (&sums)[2][kCrossTile / 2], float (&dots)[2]) {
    const std::uint32_t vectors = keep_in_register(wait_for_vectors());
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const CrossChunks share(a.mlp, rank, q);
      cross_tile<T, kCrossTile, kIsLast>(sums[q],
                                         keep_in_register(panel() + share.first * kChunkStride +
                                                          matrix_row_offset(ConsumerThread())),
                                         vectors + q * kCrossTile * 4, share.count, dots);
      if constexpr (!kIsLast) {
        const PanelHalves halves = x_halves();
        send(halves, q == 0 ? 0 : CrossChunks(a.mlp, rank, 0).count,
             q == 0 ? share.count : halves.chunks(rank), q == 1);
      }
    }
  }

  __device__ void deep_layer(int layer, int n, bool is_end, float (&dots)[2]) {
    const bool is_last = layer + 1 == a.tiling.num_deep;
    float sums[2][kDeepTile / 2] = {};
    load_vectors(false, layer);
    multiply<kDeepTile, false>(
        layer == 0 ? x_halves() : h_halves(), false, true, layer != 1, sums, [] {}, [] {});
    if (layer > 0) {
      release_to_peer();
      wait_until_sent(layer > 1);
      if (is_last) load_x0(n + 1, !is_end);
    }
    if (is_last)
      end_deep<DeepLayer::kLast>(sums, layer, dots);
    else if (layer == 0)
      end_deep<DeepLayer::kFirst>(sums, layer, dots);
    else
      end_deep<DeepLayer::kMiddle>(sums, layer, dots);
  }

  // products: of all layers so far.
  __device__ void cross_layer(int layer, int n, bool is_end, float (&products)[2][kCrossTile / 2],
                              float (&dots)[2]) {
    const bool is_last = layer + 1 == a.tiling.num_cross;
    const bool has_h = a.tiling.num_deep > 1;
    load_vectors(true, layer);
    multiply<kCrossTile, true>(
        x_halves(), layer > 0, layer > 0, layer > 0, products,
        [&] {
          if (layer > 0) reload_x0(n);
        },
        [&] {
          if (layer == 0 && has_h) publish_h();
        });
    if (!is_last || !has_h) release_to_peer();
    wait_until_sent(true);
    if (layer > 0) mbarrier_wait(smem.barrier<B::kX0Reloaded>(group), x0_reload_uses++ & 1);
    if (is_last && has_h) {
      if (is_leader()) {
        wait_for_stored_h(n);
        mbarrier_arrive_expect_tx(smem.barrier<B::kHFull>(group), scratch_h_bytes(a.tiling));
        load_h(rank, smem.barrier<B::kHFull>(group));
      }
      __syncwarp();
    }
    if (is_last)
      end_cross<true>(products, dots);
    else
      end_cross<false>(products, dots);
    if (!is_last) return;
    if (!has_h) return load_x0(n + 1, !is_end);
    panel_barrier();
    if (is_leader()) load_h(1 - rank, smem.barrier<B::kPeerFull>(group));
    __syncwarp();
  }

  __device__ void cross_layers(int n, bool is_end, float (&dots)[2]) {
    float products[2][kCrossTile / 2] = {};
#pragma unroll 1
    for (int layer = 0; layer < a.tiling.num_cross; ++layer)
      cross_layer(layer, n, is_end, products, dots);
  }

  __device__ void send_dots(int tile_turn, float (&dots)[2]) const {
    const ConsumerThread thread;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float dot = quad_sum(dots[r]);
      if (thread.lane % 4 == 0)
        st_async(mapa(smem.value(tile_turn, 2 + rank, thread.first_sample() + 8 * r), group), dot,
                 mapa(smem.barrier<B::kScoreFull>(tile_turn), group));
    }
    __syncwarp();
  }

  __device__ void run(const TileScheduler& tiles) {
    load_x0(0, true);
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      const bool is_end = tile + tiles.stride >= tiles.end;
      float dots[2] = {};
      take_tile(n);
      weights.ring.stage = weights.ring.begin;
      deep_layer(0, n, is_end, dots);
      cross_layers(n, is_end, dots);
      if (a.tiling.num_deep > 1) mbarrier_wait(smem.barrier<B::kHFull>(group), n & 1);
#pragma unroll 1
      for (int layer = 1; layer < a.tiling.num_deep; ++layer) deep_layer(layer, n, is_end, dots);
      send_dots(n & 1, dots);
    }
    if (is_first_lane()) mbarrier_arrive(smem.barrier<B::kAllDone>());
    __syncwarp();
  }
};

}  // namespace dpiframe
