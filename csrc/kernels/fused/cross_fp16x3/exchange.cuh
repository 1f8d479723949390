// The exchange of quarters between the two CTAs of a cluster in the fused FP16x3 cross kernel, and
// the loads of the first deep layer's h: by one warp of each CTA, since the consumer warpgroups
// have no time for it.
#pragma once

#include "kernels/fused/cross_fp16x3/epilogue.cuh"
#include "ptx/cluster.cuh"

namespace dpiframe {

// A quarter is sent in copies of so many bytes (the last is less than twice as long), so many
// cycles apart: a single large copy would delay weights.
constexpr int kSendBytes = 2 * kStripBytes;
constexpr int kSendPause = 300;

// By one thread.
struct Fp16x3Exchange {
  using B = FusedCrossFp16x3Barriers;

  const FusedCrossFp16x3Params& a;
  const FusedCrossFp16x3Smem& smem;
  int rank;
  // Completed waits on kPeerEmpty, kWritten and kPeerFull; parity = & 1.
  int peer_empty_uses = 0;
  int written_uses = 0;
  int peer_full_uses = 0;

  __device__ std::uint32_t at_peer(std::uint32_t address) const { return mapa(address, 1 - rank); }
  __device__ std::uint32_t address_of(int quarter, bool of_h) const {
    return smem.base + quarter_offset(a.tiling.x_strips, (quarter + (of_h ? 2 : 0)) % 4);
  }
  __device__ void expect_peer(int strips) const {
#pragma unroll
    for (int g = 0; g < 2; ++g)
      mbarrier_arrive_expect_tx(smem.barrier<B::kPeerFull>(g),
                                quarter_bytes(strips, (1 - rank) * 2 + g));
  }
  __device__ void wait_for_peer() {
#pragma unroll
    for (int g = 0; g < 2; ++g) mbarrier_wait(smem.barrier<B::kPeerFull>(g), peer_full_uses & 1);
    ++peer_full_uses;
  }

  __device__ void send(std::uint32_t own, int bytes, std::uint32_t barrier) const {
#pragma unroll 1
    while (bytes > 0) {
      const int now = bytes < 2 * kSendBytes ? bytes : kSendBytes;
      tma_bulk_copy_to_cta(at_peer(own), own, now, barrier);
      own += now;
      bytes -= now;
      const long long begin = clock64();
      while (bytes > 0 && clock64() - begin < kSendPause) continue;
    }
  }
  // The CTA's quarters of x or h, `strips` strips in all, once they are written.
  __device__ void exchange(int strips, bool of_h, bool must_be_ready) {
    expect_peer(strips);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      mbarrier_wait(smem.barrier<B::kWritten>(g), written_uses & 1);
      if (g == 0 && must_be_ready)
        mbarrier_wait(smem.barrier<B::kPeerEmpty>(), peer_empty_uses++ & 1);
      send(address_of(rank * 2 + g, of_h), quarter_bytes(strips, rank * 2 + g),
           at_peer(smem.barrier<B::kPeerFull>(g)));
    }
    ++written_uses;
    wait_for_peer();
#pragma unroll
    for (int g = 0; g < 2; ++g) mbarrier_arrive_remote(at_peer(smem.barrier<B::kSent>(g)));
  }

  // Quarter g of CTA `cta`'s h of the first deep layer, from its scratch.
  __device__ void load_h(unsigned cta, int g, int quarter, std::uint32_t barrier) const {
    const char* from =
        a.scratch + static_cast<std::size_t>(cta) * a.scratch_bytes + scratch_h_offset(a.tiling, g);
    tma_bulk_load(address_of(quarter, true), from, quarter_bytes(a.tiling.h_strips[0], quarter),
                  barrier);
  }
  // Own quarters go to where the peer's of x were, which are free when the last product of x is
  // done; the peer's to where own ones were, once the peer has these, too.
  __device__ void load_all_h(int n) {
    mbarrier_wait(smem.barrier<B::kXDone>(), n & 1);
    mbarrier_wait(smem.barrier<B::kHStored>(), n & 1);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int own = rank * 2 + g;
      mbarrier_arrive_expect_tx(smem.barrier<B::kHFull>(g),
                                quarter_bytes(a.tiling.h_strips[0], own));
      load_h(blockIdx.x, g, own, smem.barrier<B::kHFull>(g));
    }
    fence_acq_rel_cluster();
    mbarrier_arrive_remote(at_peer(smem.barrier<B::kPeerHStored>()));
    expect_peer(a.tiling.h_strips[0]);
    mbarrier_wait_acquire_cluster(smem.barrier<B::kPeerHStored>(), n & 1);
    fence_proxy_async();
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      mbarrier_wait(smem.barrier<B::kWritten>(g), written_uses & 1);
      load_h(blockIdx.x ^ 1u, g, (1 - rank) * 2 + g, smem.barrier<B::kPeerFull>(g));
    }
    ++written_uses;
    wait_for_peer();
  }

  __device__ void run(const Fp16x3TileScheduler& tiles) {
#pragma unroll 1
    for (int n = 0; n < tiles.count(); ++n) {
#pragma unroll 1
      for (int layer = -1; layer + 1 < a.tiling.num_cross; ++layer)
        exchange(a.tiling.x_strips, false, layer >= 0 || n > 0);
      if (a.tiling.num_deep == 1) continue;
      load_all_h(n);
#pragma unroll 1
      for (int layer = 1; layer + 1 < a.tiling.num_deep; ++layer)
        exchange(a.tiling.h_strips[layer], true, true);
    }
  }
};

}  // namespace dpiframe
