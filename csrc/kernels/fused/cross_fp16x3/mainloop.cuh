// The mainloop of the fused FP16x3 cross kernel, in the order that smem_layout.h gives.
//
// An output overwrites its product's input. A warpgroup writes its quarter once both of the CTA's
// are done with the product and the peer has what was sent from there (kSent); a warp that does
// nothing else sends it once those of the peer are done with the product, too (kPeerEmpty;
// exchange.cuh).
#pragma once

#include "kernels/fused/cross_fp16x3/gather.cuh"
#include "kernels/fused/score.cuh"
#include "ptx/cluster.cuh"
#include "ptx/named_barrier.cuh"

namespace dpiframe {

// The consumer warpgroups' way through all tiles.
template <int kCrossTile, int kDeepTile>
struct Fp16x3Mainloop {
  using B = FusedCrossFp16x3Barriers;

  const BatchMemory& inputs;
  const FusedCrossFp16x3Params& a;
  const FusedCrossFp16x3Smem& smem;
  int rank;
  Fp16x3WeightConsumer weights{RingPosition(smem.ring())};
  ConsumerThread thread{};
  // Completed waits on kPeerFull and kSent; parity = & 1.
  int peer_full_uses = 0;
  int sent_uses = 0;

  __device__ int quarter() const { return rank * 2 + thread.warpgroup; }
  // A quarter of x; of h.
  __device__ std::uint32_t x_address(int quarter) const {
    return smem.base + quarter_offset(a.tiling.x_strips, quarter);
  }
  __device__ std::uint32_t h_address(int quarter) const { return x_address((quarter + 2) % 4); }
  __device__ int x_count() const { return strip_count(a.tiling.x_strips, quarter()); }
  __device__ bool is_first_lane() const { return thread.lane == 0; }
  __device__ void both_barrier() const { named_barrier_sync<4, 256>(); }

  __device__ char* scratch() const {
    return a.scratch + static_cast<std::size_t>(blockIdx.x) * a.scratch_bytes;
  }

  // totals += an input of `strips` strips by the next weights; own quarters first. of_h: the input
  // is h; wait_for_peer: the peer's quarters are still being copied; is_loaded: own ones are still
  // being loaded, too. Each quarter has sums of its own, which are added times its powers of two.
  template <int kTile>
  __device__ void multiply(int strips, bool of_h, bool wait_for_peer, bool is_loaded, int n,
                           float (&totals)[kTile / 2]) {
    float sums[kTile / 2] = {};  // else their registers are taken from one product to the next
    both_barrier();
    weights.start();
#pragma unroll 1
    for (int turn = 0; turn < 4; ++turn) {
      const int q = (rank * 2 + turn) % 4;
      if (turn < 2 && is_loaded) mbarrier_wait(smem.barrier<B::kHFull>(turn), n & 1);
      if (turn >= 2 && wait_for_peer)
        mbarrier_wait(smem.barrier<B::kPeerFull>(turn - 2), peer_full_uses & 1);
      const int count = strip_count(strips, q);
      if (count == 0) continue;
      const std::uint32_t from = of_h ? h_address(q) : x_address(q);
      weights.template multiply<kTile>(from, count, sums);
      const float inverse[] = {load_inverse(from, count, thread.first_sample()),
                               load_inverse(from, count, thread.first_sample() + 8)};
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) totals[i] = fmaf(sums[i], inverse[i / 2 % 2], totals[i]);
    }
    if (wait_for_peer) ++peer_full_uses;
  }

  // Behind a product: the peer may overwrite its input.
  __device__ void release_to_peer() const {
    __syncwarp();  // all of the warp have read the powers of two that came
    if (is_first_lane()) mbarrier_arrive_remote(mapa(smem.barrier<B::kPeerEmpty>(), 1 - rank));
    __syncwarp();
  }
  // Behind a product: until the warpgroup's quarter of its input may be overwritten here.
  __device__ void wait_until_sent(bool was_sent) {
    both_barrier();
    if (was_sent) mbarrier_wait(smem.barrier<B::kSent>(thread.warpgroup), sent_uses++ & 1);
  }
  __device__ void tell_written() const {
    fence_proxy_async_shared();
    mbarrier_arrive(smem.barrier<B::kWritten>(thread.warpgroup));
  }
  // What this warp stored in global memory may be copied from there. Late, when the stores are long
  // done: the fence waits for them.
  __device__ void publish_stored(std::uint32_t barrier) const {
    fence_proxy_async_global();
    __syncwarp();
    if (is_first_lane()) mbarrier_arrive(barrier);
    __syncwarp();
  }

  __device__ void deep_layer(int layer, int n, bool is_end, float (&dots)[2]) {
    const bool is_last = layer + 1 == a.tiling.num_deep;
    float values[kDeepTile / 2] = {};
    float tops[2] = {};
    multiply<kDeepTile>(layer == 0 ? a.tiling.x_strips : a.tiling.h_strips[layer - 1], layer > 0,
                        true, layer == 1, n, values);
    if (layer == 0) publish_stored(smem.barrier<B::kX0Stored>());
    if (layer > 0 && !(is_last && is_end)) release_to_peer();
    std::uint32_t vectors_barrier;
    const std::uint32_t vectors =
        weights.acquire_stage(vector_stage_bytes(kDeepTile), vectors_barrier);
    deep_epilogue<kDeepTile>(values, EpilogueVectors<kDeepTile>(vectors), is_last, dots, tops);
    weights.release_stage(vectors_barrier);
    if (layer > 0) wait_until_sent(layer > 1);
    if (is_last) return;
    const int strips = strip_count(a.tiling.h_strips[layer], quarter());
    if (layer == 0) {
      char* own = scratch() + scratch_h_offset(a.tiling, thread.warpgroup);
      store_quarter<kDeepTile>(values, tops, strips, ToGlobal{own});
      return;
    }
    store_quarter<kDeepTile>(values, tops, strips, ToShared{h_address(quarter())});
    tell_written();
  }

  // products: see CrossEpilogue.
  __device__ void cross_layer(int layer, int n, bool is_end, float (&products)[kCrossTile / 2],
                              float (&values)[kCrossTile / 2], float (&dots)[2], float (&tops)[2]) {
    const bool is_last = layer + 1 == a.tiling.num_cross;
    const bool has_h = a.tiling.num_deep > 1;
    multiply<kCrossTile>(a.tiling.x_strips, false, layer > 0, false, n, products);
    if (layer == 0 && has_h) publish_stored(smem.barrier<B::kHStored>());
    __syncwarp();
    if (is_last && has_h && is_first_lane()) mbarrier_arrive(smem.barrier<B::kXDone>());
    if (!is_last || (!has_h && !is_end)) release_to_peer();
    CrossEpilogue<kCrossTile>{weights, is_last}.run(products, values, dots, tops);
    wait_until_sent(true);
  }

  // x_0 and the cross layers; the first deep layer behind the former, the others behind the latter.
  // Each kind of layer is called from one place: code that runs once a tile comes from L2.
  __device__ void layers(int tile, int n, bool is_end, float (&dots)[2]) {
    const int num_deep = a.tiling.num_deep;
    float products[kCrossTile / 2];
#pragma unroll 1
    for (int layer = -1;; ++layer) {
      const bool is_first = layer < 0;
      const bool is_last = layer + 1 == a.tiling.num_cross;
      float values[kCrossTile / 2];
      float tops[2] = {};
      if (is_first) {
        gather_x0<kCrossTile>(inputs, a, tile, first_strip(a.tiling.x_strips, quarter()), x_count(),
                              values, tops);
        __syncwarp();                // bad ids may have diverged the warp
        if (n == 0) cluster_wait();  // the peer's barriers are there
      } else {
        cross_layer(layer, n, is_end, products, values, dots, tops);
      }
      if (!is_last)
        store_quarter<kCrossTile>(values, tops, x_count(), ToShared{x_address(quarter())});
      if (!is_last || num_deep > 1) tell_written();
      if (!is_first && !is_last) continue;
      if (is_first) keep_x0<kCrossTile>(values, scratch());  // late: stores behind it wait
#pragma unroll 1
      for (int deep = is_first ? 0 : 1; deep < (is_first ? 1 : num_deep); ++deep)
        deep_layer(deep, n, is_end, dots);
      if (is_last) return;
#pragma unroll
      for (float& product : products) product = 0.0f;
    }
  }

  // The thread's part of its samples' dots to the CTA that scores them.
  __device__ void send_dots(int n, const float (&dots)[2]) const {
    if (n > 0) mbarrier_wait(smem.barrier<B::kScored>(), (n - 1) & 1);
    const auto cta = static_cast<std::uint32_t>(thread.warp / 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float dot = quad_sum(dots[r]);
      if (thread.lane % 4 == 0)
        st_async(mapa(smem.value(quarter(), (thread.first_sample() + 8 * r) % 32), cta), dot,
                 mapa(smem.barrier<B::kScoreFull>(), cta));
    }
    __syncwarp();
  }

  __device__ void run(const Fp16x3TileScheduler& tiles) {
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      float dots[2] = {};
      weights.ring.stage = weights.ring.begin;
      layers(tile, n, tile + tiles.stride >= tiles.end, dots);
      send_dots(n, dots);
    }
  }
};

}  // namespace dpiframe
