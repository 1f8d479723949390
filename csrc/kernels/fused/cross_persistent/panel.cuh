// A panel's warpgroups in both blocks of a cluster, in the one-kernel forward pass for large
// batches: where the panel's numbers lie, and what one warpgroup tells and sends the other.
//
// An output takes the place of its product's input. A warpgroup writes its block's half once all of
// it is done with the product and the other block has what was sent from there (`taken`), and sends
// it once the other block's warpgroup of the same panel is done with the product, too (`ready`).
// Only x0 comes there before: once the block's half is multiplied and taken (bring_x0).
#pragma once

#include "kernels/fused/cross_persistent/weight_pipeline.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// Where the halves of an input lie in a panel, and their chunks. By choice, not as arrays: these
// would lie in local memory, for which there is next to no cache.
struct TallHalves {
  int first_chunks;
  int second_chunks;
  int first_offset;
  int second_offset;

  __device__ int chunks(int half) const { return half == 0 ? first_chunks : second_chunks; }
  __device__ int offset(int half) const { return half == 0 ? first_offset : second_offset; }
};

struct TallPanel {
  const ForwardTallArguments& a;
  const TallPlaces& places;
  int rank;
  int group = threadIdx.x / 128;
  int came = 0;   // halves of the other block, and of h
  int asked = 0;  // how often the other block had to be ready
  int sent = 0;   // halves that the other block took
  int back = 0;   // halves of x0 that came again

  __device__ void panel_barrier() const {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
  }
  // Of both warpgroups: one that is ahead would keep pieces of the ring waiting for the other.
  __device__ void keep_step() const { asm volatile("bar.sync 4, 256;" ::: "memory"); }
  __device__ bool is_leader() const { return threadIdx.x % 128 == 0; }
  __device__ bool is_first_lane() const { return threadIdx.x % 32 == 0; }
  __device__ std::uint32_t panel() const { return places.panel(group); }
  __device__ int x_offset(int half) const {
    return half == 0 ? 0 : a.form.x_chunks[0] * kChunkStride;
  }
  __device__ TallHalves x_halves() const {
    return {a.form.x_chunks[0], a.form.x_chunks[1], x_offset(0), x_offset(1)};
  }
  __device__ TallHalves h_halves() const {
    const int half = forward_chunks(a.form.deep_tile) / 2;
    return {half, half, x_offset(1), x_offset(0)};
  }

  __device__ char* h_of(unsigned block) const {
    return forward_tall_scratch(a, block) + group * forward_tall_h_bytes(a.form);
  }

  __device__ const char* rows_of(int n) const {
    return forward_tall_scratch(a, blockIdx.x) +
           forward_tall_rows_place(a.form, rank, n & 1, group);
  }

  // Behind a product: its input may be written over, for the other block.
  __device__ void tell_ready() const {
    if (is_first_lane()) arrive_in(address_in(places.ready(group), 1 - rank));
  }
  // Behind a product: the block's half of its input may be written over, here.
  __device__ void wait_until_taken(bool was_sent) {
    panel_barrier();
    if (was_sent) barrier_wait(places.taken(group), sent++ & 1);
  }
  // By one thread.
  __device__ void send_chunks(const TallHalves& halves, int begin, int end) const {
    const std::uint32_t first = panel() + halves.offset(rank) + begin * kChunkStride;
    copy_to_peer(address_in(first, 1 - rank), first, (end - begin) * kChunkStride,
                 address_in(places.received(group), 1 - rank));
  }
  // Chunks of the block's half, from the first on; the last ones where is_last.
  __device__ void send(const TallHalves& halves, int begin, int end, bool is_last) {
    publish_to_async();
    panel_barrier();
    if (is_leader()) {
      if (begin == 0) barrier_wait(places.ready(group), asked & 1);
      send_chunks(halves, begin, end);
    }
    __syncwarp();
    if (is_last) ++asked;
  }

  // Behind a few steps by the other half: x0 of tile n again, to where the block's half of x_l was.
  __device__ void bring_x0(int n) const {
    if (is_first_lane()) barrier_arrive(places.multiplied(group));
    if (is_leader()) {
      const int bytes = a.form.x_chunks[rank] * kChunkStride;
      barrier_wait(places.multiplied(group), back & 1);
      barrier_wait(places.taken(group), sent & 1);
      barrier_expect(places.x0_back(group), bytes);
      copy_in(panel() + x_offset(rank), rows_of(n), bytes, places.x0_back(group));
    }
    __syncwarp();
  }

  // Behind a panel's last product, and before its first: brings the block's half of tile n's x0.
  __device__ void fetch_rows(int n, bool is_there) const {
    panel_barrier();
    if (is_there && is_leader()) {
      barrier_wait(places.rows_there(), n & 1);
      const int bytes = a.form.x_chunks[rank] * kChunkStride;
      barrier_expect(places.gathered(group), bytes);
      copy_in(panel() + x_offset(rank), rows_of(n), bytes, places.gathered(group));
    }
    __syncwarp();
  }
  __device__ void tell_taken() const {
    if (is_first_lane()) barrier_arrive(places.rows_taken());
  }
  // They are there: to the other block, once that is done with the tile before.
  __device__ void take_rows(int n) {
    barrier_wait(places.gathered(group), n & 1);
    tell_taken();
    if (is_leader()) {
      if (n > 0) barrier_wait(places.ready(group), asked & 1);
      send_chunks(x_halves(), 0, x_halves().chunks(rank));
    }
    __syncwarp();
    if (n > 0) ++asked;
  }

  // h of the first deep level is in global memory, for bulk copies of either block. Late, when the
  // stores are long done: the fences wait for them.
  __device__ void tell_stored() const {
    publish_global();
    __syncwarp();
    if (!is_first_lane()) return;
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
#pragma unroll
    for (int block = 0; block < 2; ++block) arrive_in(address_in(places.stored(group), block));
  }
  __device__ void wait_until_stored(int n) const {
    asm volatile(
        "{.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n"
        "fence.proxy.async;}" ::"r"(places.stored(group)),
        "r"(n & 1)
        : "memory");
  }
  // A half of h from global memory, to where x is read no more.
  __device__ void load_h(int half, std::uint32_t barrier) const {
    const unsigned block = half == rank ? blockIdx.x : blockIdx.x ^ 1u;
    copy_in(panel() + h_halves().offset(half), h_of(block), forward_tall_h_bytes(a.form), barrier);
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
