// The products of the one-kernel forward pass for float32, in the order of forward_split_layout.h.
//
// An output takes the place of its product's input. A warpgroup writes its quarter once both of the
// block's are done with the product and the other block has what was sent from there (`taken`), and
// sends it once those of the other block are done with the product, too (`ready`).
#pragma once

#include "kernels/forward_split_gather.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kSplitSteps =
    5;  // whose products are summed by the tensor cores before they are added

template <int kCrossTile, int kDeepTile>
struct SplitProducts {
  const RunInputs& inputs;
  const ForwardSplitArguments& a;
  const SplitPlaces& places;
  int rank;
  SplitProduct product{RingWalk(places.ring())};
  ForwardThread thread{};
  int products = 0;  // made so far
  int came = 0;      // inputs of which the other block's quarters came
  int asked = 0;     // how often the other block had to be ready
  int sent = 0;      // quarters that the other block took

  __device__ int quarter() const { return rank * 2 + thread.group; }
  __device__ std::uint32_t place(int quarter) const {
    return places.base + forward_split_place(a.form.x_strips, quarter);
  }
  __device__ bool is_leader() const { return threadIdx.x % 128 == 0; }
  __device__ bool is_first_lane() const { return thread.lane == 0; }
  __device__ std::uint32_t at_peer(std::uint32_t address) const {
    return address_in(address, 1 - rank);
  }
  __device__ void group_barrier() const {
    asm volatile("bar.sync %0, 128;" ::"r"(thread.group + 1) : "memory");
  }
  __device__ void both_barrier() const { asm volatile("bar.sync 4, 256;" ::: "memory"); }

  __device__ float4* own_x0() const {
    return reinterpret_cast<float4*>(scratch_of(blockIdx.x)) +
           thread.group * SplitX0<kCrossTile>::kWords * 128 + threadIdx.x % 128;
  }
  __device__ char* scratch_of(unsigned block) const {
    return a.scratch + static_cast<std::size_t>(block) * a.scratch_bytes;
  }
  __device__ char* h_of(unsigned block) const {
    return scratch_of(block) + forward_split_h_place(a.form, thread.group);
  }

  // By one thread: a product's vectors.
  __device__ void fetch_vectors(int begin, int tile) const {
    const int bytes = forward_split_vector_bytes(tile);
    barrier_expect(places.vectors_there(), bytes);
    copy_in(places.vectors(), a.vectors + rank * a.vector_floats + begin, bytes,
            places.vectors_there());
  }

  // totals = an input of `strips` strips by the next weights; own quarters first. comes: the other
  // block's still do; from_peer: from that block; is_loaded: own ones still come, too.
  template <int kTile>
  __device__ void multiply(int strips, bool comes, bool from_peer, bool is_loaded, int n,
                           float (&totals)[kTile / 2]) {
    float sums[kTile / 2] = {};  // else their registers are taken from one product to the next
#pragma unroll
    for (float& total : totals) total = 0.0f;
    product.template start<kTile>(2 * strips);
    if (comes && is_leader())
      barrier_expect(places.received(thread.group),
                     forward_split_quarter_bytes(strips, (1 - rank) * 2 + thread.group));
    __syncwarp();
#pragma unroll 1
    for (int turn = 0; turn < 4; ++turn) {
      const int q = (rank * 2 + turn) % 4;
      if (turn < 2 && is_loaded) barrier_wait(places.loaded(turn), n & 1);
      if (turn >= 2 && comes) {
        barrier_wait(places.received(turn - 2), came & 1);
        if (from_peer && threadIdx.x == 0) arrive_in(at_peer(places.taken(turn - 2)));
        __syncwarp();
      }
      const int count = forward_split_count(strips, q);
      const std::uint32_t inverses = place(q) + count * kSplitStripBytes + thread.first_row() * 4;
#pragma unroll 1
      for (int first = 0; first < count; first += kSplitSteps) {
        product.template multiply<kTile>(place(q) + first * kSplitStripBytes,
                                         min(kSplitSteps, count - first), sums);
        const float inverse[] = {load_float(inverses), load_float(inverses + 32)};
#pragma unroll
        for (int i = 0; i < kTile / 2; ++i)
          totals[i] = fmaf(sums[i], inverse[i / 2 % 2], totals[i]);
      }
    }
    if (comes) ++came;
  }

  // Behind a product: its input may be written over, for the other block.
  __device__ void tell_ready() const {
    if (is_first_lane()) arrive_in(at_peer(places.ready()));
    __syncwarp();
  }
  // Behind a product: the warpgroup's quarter of its input may be written over, here.
  __device__ void wait_until_taken(bool was_sent) {
    both_barrier();
    if (was_sent) barrier_wait(places.taken(thread.group), sent++ & 1);
  }
  __device__ void send(int strips, bool must_be_ready) {
    publish_to_async();
    group_barrier();
    if (is_leader()) {
      if (must_be_ready) barrier_wait(places.ready(), asked & 1);
      const std::uint32_t own = place(quarter());
      copy_to_peer(at_peer(own), own, forward_split_quarter_bytes(strips, quarter()),
                   at_peer(places.received(thread.group)));
    }
    __syncwarp();
    if (must_be_ready) ++asked;
  }

  __device__ void gather(int tile, int n) {
    float values[kCrossTile / 2];
    float tops[2] = {};
    const int count = forward_split_count(a.form.x_strips, quarter());
    gather_x0<kCrossTile>(inputs, a.parts, tile, forward_split_first(a.form.x_strips, quarter()),
                          count, own_x0(), values, tops);
    store_quarter<kCrossTile>(values, tops, count, ToShared{place(quarter())});
    send(a.form.x_strips, n > 0);
  }

  // h of the first deep level is in global memory, for bulk copies of either block. Late, when the
  // stores are long done: the fences wait for them.
  __device__ void tell_stored() const {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __syncwarp();
    if (is_first_lane()) {
      asm volatile("fence.acq_rel.cluster;" ::: "memory");
#pragma unroll
      for (int block = 0; block < 2; ++block) arrive_in(address_in(places.stored(), block));
    }
    __syncwarp();
  }
  // Both blocks' quarters of it that are the warpgroup's, to where x is read no more.
  __device__ void load_h(int n) const {
    group_barrier();
    if (is_leader()) {
      asm volatile(
          "{.reg .pred p;\n"
          "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
          "@!p bra again;\n"
          "fence.proxy.async;}" ::"r"(places.stored()),
          "r"(n & 1)
          : "memory");
      const int strips = a.form.h_strips[0];
      const int own_bytes = forward_split_quarter_bytes(strips, quarter());
      barrier_expect(places.loaded(thread.group), own_bytes);
      copy_in(place(quarter()), h_of(blockIdx.x), own_bytes, places.loaded(thread.group));
      const int other = (quarter() + 2) % 4;
      copy_in(place(other), h_of(blockIdx.x ^ 1u), forward_split_quarter_bytes(strips, other),
              places.received(thread.group));
    }
    __syncwarp();
  }

  __device__ std::uint32_t wait_for_vectors() {
    barrier_wait(places.vectors_there(), products++ & 1);
    return places.vectors();
  }

  __device__ void deep_level(int level, int vectors, int n, bool is_end, float (&dots)[2]) {
    const bool is_last = level + 1 == a.form.num_deep;
    float totals[kDeepTile / 2];
    float tops[2] = {};
    both_barrier();
    if (threadIdx.x == 0) fetch_vectors(vectors, kDeepTile);
    __syncwarp();
    multiply<kDeepTile>(level == 0 ? a.form.x_strips : a.form.h_strips[level - 1], true, level != 1,
                        level == 1, n, totals);
    if (level > 0 && !(is_last && is_end)) tell_ready();
    const SplitVectors<kDeepTile> numbers(wait_for_vectors());
    if (is_last) {
      end_deep<kDeepTile, true>(totals, numbers, dots, tops);
      if (level > 0) wait_until_taken(level > 1);
      return;
    }
    end_deep<kDeepTile, false>(totals, numbers, dots, tops);
    const int count = forward_split_count(a.form.h_strips[level], quarter());
    if (level == 0)
      return store_quarter<kDeepTile>(totals, tops, count, ToGlobal{h_of(blockIdx.x)});
    wait_until_taken(level > 1);
    store_quarter<kDeepTile>(totals, tops, count, ToShared{place(quarter())});
    send(a.form.h_strips[level], true);
  }

  template <bool kIsFirst, bool kIsLast>
  __device__ void end_cross_level(float (&totals)[kCrossTile / 2], float (&dots)[2],
                                  float (&tops)[2]) {
    SplitX0<kCrossTile> x0(own_x0());
    const SplitVectors<kCrossTile> numbers(wait_for_vectors());
    end_cross<kCrossTile, kIsFirst, kIsLast>(totals, x0, place(quarter()),
                                             forward_split_count(a.form.x_strips, quarter()),
                                             numbers, dots, tops);
  }

  __device__ void cross_level(int level, int vectors, int n, bool is_end, float (&dots)[2]) {
    const bool is_last = level + 1 == a.form.num_cross;
    const bool has_h = a.form.num_deep > 1;
    float totals[kCrossTile / 2];
    float tops[2] = {};
    both_barrier();
    if (threadIdx.x == 0) fetch_vectors(vectors, kCrossTile);
    __syncwarp();
    multiply<kCrossTile>(a.form.x_strips, level > 0, true, false, n, totals);
    if (level == 0 && has_h) tell_stored();
    if (!is_last || (!has_h && !is_end)) tell_ready();
    if (level == 0 && is_last)
      end_cross_level<true, true>(totals, dots, tops);
    else if (level == 0)
      end_cross_level<true, false>(totals, dots, tops);
    else if (is_last)
      end_cross_level<false, true>(totals, dots, tops);
    else
      end_cross_level<false, false>(totals, dots, tops);
    wait_until_taken(true);
    if (is_last) {
      if (has_h) load_h(n);
      return;
    }
    store_quarter<kCrossTile>(totals, tops, forward_split_count(a.form.x_strips, quarter()),
                              ToShared{place(quarter())});
    send(a.form.x_strips, true);
  }

  // The thread's part of its rows' dots to the block that scores them.
  __device__ void send_dots(int n, const float (&dots)[2]) const {
    if (n > 0) barrier_wait(places.scored(), (n - 1) & 1);
    const auto block = static_cast<std::uint32_t>(thread.warp / 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float dot = dots[r];
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
      if (thread.lane % 4 == 0)
        store_in(address_in(places.value(quarter(), (thread.first_row() + 8 * r) % 32), block), dot,
                 address_in(places.to_score(), block));
    }
    __syncwarp();
  }

  __device__ void run(const SplitTiles& tiles) {
    constexpr int kCrossFloats = forward_split_vector_bytes(kCrossTile) / 4;
    constexpr int kDeepFloats = forward_split_vector_bytes(kDeepTile) / 4;
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      const bool is_end = tile + tiles.stride >= tiles.end;
      float dots[2] = {};
      gather(tile, n);
      product.ring.piece = product.ring.begin;
      deep_level(0, 0, n, is_end, dots);
      int vectors = kDeepFloats;
#pragma unroll 1
      for (int level = 0; level < a.form.num_cross; ++level, vectors += kCrossFloats)
        cross_level(level, vectors, n, is_end, dots);
#pragma unroll 1
      for (int level = 1; level < a.form.num_deep; ++level, vectors += kDeepFloats)
        deep_level(level, vectors, n, is_end, dots);
      send_dots(n, dots);
    }
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
