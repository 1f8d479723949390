// What the two blocks of a cluster send each other in the one-kernel forward pass for float32, and
// h of the first deep level: by one warp of each, since those that multiply have no time for it.
#pragma once

#include "kernels/fused/cross_fp16x3/weight_pipeline.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// A quarter goes in pieces of so many bytes (the last is less than twice as long), so many clocks
// apart: what comes in one go keeps weights waiting.
constexpr int kSplitSendBytes = 2 * kSplitStripBytes;
constexpr int kSplitSendPause = 300;

// By one thread.
struct SplitSender {
  const ForwardSplitArguments& a;
  const SplitPlaces& places;
  int rank;
  int asked = 0;    // how often the other block had to be ready
  int written = 0;  // quarters of either warpgroup
  int came = 0;     // of the other block

  __device__ std::uint32_t at_peer(std::uint32_t address) const {
    return address_in(address, 1 - rank);
  }
  __device__ std::uint32_t place(int quarter, bool of_h) const {
    return places.base + forward_split_place(a.form.x_strips, (quarter + (of_h ? 2 : 0)) % 4);
  }
  __device__ void expect_others(int strips) const {
#pragma unroll
    for (int g = 0; g < 2; ++g)
      barrier_expect(places.received(g), forward_split_quarter_bytes(strips, (1 - rank) * 2 + g));
  }
  __device__ void wait_for_others() {
#pragma unroll
    for (int g = 0; g < 2; ++g) barrier_wait(places.received(g), came & 1);
    ++came;
  }

  __device__ void send(std::uint32_t own, int bytes, std::uint32_t barrier) const {
#pragma unroll 1
    while (bytes > 0) {
      const int now = bytes < 2 * kSplitSendBytes ? bytes : kSplitSendBytes;
      copy_to_peer(at_peer(own), own, now, barrier);
      own += now;
      bytes -= now;
      const long long begin = clock64();
      while (bytes > 0 && clock64() - begin < kSplitSendPause) continue;
    }
  }
  // The block's quarters of x or h, `strips` strips in all, once they are written.
  __device__ void exchange(int strips, bool of_h, bool must_be_ready) {
    expect_others(strips);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      barrier_wait(places.written(g), written & 1);
      if (g == 0 && must_be_ready) barrier_wait(places.ready(), asked++ & 1);
      send(place(rank * 2 + g, of_h), forward_split_quarter_bytes(strips, rank * 2 + g),
           at_peer(places.received(g)));
    }
    ++written;
    wait_for_others();
#pragma unroll
    for (int g = 0; g < 2; ++g) arrive_in(at_peer(places.taken(g)));
  }

  // Quarter g of `block`'s h of the first deep level, from its scratch.
  __device__ void load_h(unsigned block, int g, int quarter, std::uint32_t barrier) const {
    const char* from = a.scratch + static_cast<std::size_t>(block) * a.scratch_bytes +
                       forward_split_h_place(a.form, g);
    copy_in(place(quarter, true), from, forward_split_quarter_bytes(a.form.h_strips[0], quarter),
            barrier);
  }
  // Own quarters go to where the other block's of x were, which are free when the last product of x
  // is done; the other's to where own ones were, once the other block has taken them, too.
  __device__ void load_all_h(int n) {
    barrier_wait(places.x_done(), n & 1);
    barrier_wait(places.h_stored(), n & 1);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int own = rank * 2 + g;
      barrier_expect(places.loaded(g), forward_split_quarter_bytes(a.form.h_strips[0], own));
      load_h(blockIdx.x, g, own, places.loaded(g));
    }
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    arrive_in(at_peer(places.other_h_stored()));
    expect_others(a.form.h_strips[0]);
    asm volatile(
        "{.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n"
        "fence.proxy.async;}" ::"r"(places.other_h_stored()),
        "r"(n & 1)
        : "memory");
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      barrier_wait(places.written(g), written & 1);
      load_h(blockIdx.x ^ 1u, g, (1 - rank) * 2 + g, places.received(g));
    }
    ++written;
    wait_for_others();
  }

  __device__ void run(const SplitTiles& tiles) {
#pragma unroll 1
    for (int n = 0; n < tiles.count(); ++n) {
#pragma unroll 1
      for (int level = -1; level + 1 < a.form.num_cross; ++level)
        exchange(a.form.x_strips, false, level >= 0 || n > 0);
      if (a.form.num_deep == 1) continue;
      load_all_h(n);
#pragma unroll 1
      for (int level = 1; level + 1 < a.form.num_deep; ++level)
        exchange(a.form.h_strips[level], true, true);
    }
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
