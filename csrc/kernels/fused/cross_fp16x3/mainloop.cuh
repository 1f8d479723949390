// The products of the one-kernel forward pass for float32, in the order of forward_split_layout.h.
//
// An output takes the place of its product's input. A warpgroup writes its quarter once both of the
// block's are done with the product and the other block has what was sent from there (`taken`); a
// warp that does nothing else sends it once those of the other block are done with the product, too
// (`ready`; forward_split_send.cuh).
#pragma once

#include "kernels/fused/cross_fp16x3/gather.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

template <int kCrossTile, int kDeepTile, bool kEachLeaves>
struct SplitProducts {
  const BatchMemory& inputs;
  const ForwardSplitArguments& a;
  const SplitPlaces& places;
  int rank;
  SplitStream<kEachLeaves> stream{RingWalk(places.ring())};
  ForwardThread thread{};
  int came = 0;  // inputs of which the other block's quarters came
  int sent = 0;  // quarters that the other block took

  __device__ int quarter() const { return rank * 2 + thread.group; }
  // A quarter of x; of h.
  __device__ std::uint32_t place(int quarter) const {
    return places.base + forward_split_place(a.form.x_strips, quarter);
  }
  __device__ std::uint32_t h_place(int quarter) const { return place((quarter + 2) % 4); }
  __device__ int x_count() const { return forward_split_count(a.form.x_strips, quarter()); }
  __device__ bool is_first_lane() const { return thread.lane == 0; }
  __device__ void both_barrier() const { asm volatile("bar.sync 4, 256;" ::: "memory"); }

  __device__ char* scratch() const {
    return a.scratch + static_cast<std::size_t>(blockIdx.x) * a.scratch_bytes;
  }

  // totals += an input of `strips` strips by the next weights; own quarters first. of_h: the input
  // is h; comes: the other block's quarters still do; is_loaded: own ones still come, too. Each
  // quarter's sums are of their own, to be added over its powers of two.
  template <int kTile>
  __device__ void multiply(int strips, bool of_h, bool comes, bool is_loaded, int n,
                           float (&totals)[kTile / 2]) {
    float sums[kTile / 2] = {};  // else their registers are taken from one product to the next
    both_barrier();
    stream.start();
#pragma unroll 1
    for (int turn = 0; turn < 4; ++turn) {
      const int q = (rank * 2 + turn) % 4;
      if (turn < 2 && is_loaded) barrier_wait(places.loaded(turn), n & 1);
      if (turn >= 2 && comes) barrier_wait(places.received(turn - 2), came & 1);
      const int count = forward_split_count(strips, q);
      if (count == 0) continue;
      const std::uint32_t from = of_h ? h_place(q) : place(q);
      stream.template multiply<kTile>(from, count, sums);
      const float inverse[] = {load_inverse(from, count, thread.first_row()),
                               load_inverse(from, count, thread.first_row() + 8)};
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) totals[i] = fmaf(sums[i], inverse[i / 2 % 2], totals[i]);
    }
    if (comes) ++came;
  }

  // Behind a product: its input may be written over, for the other block.
  __device__ void tell_ready() const {
    __syncwarp();  // all of the warp have read the powers of two that came
    if (is_first_lane()) arrive_in(address_in(places.ready(), 1 - rank));
    __syncwarp();
  }
  // Behind a product: the warpgroup's quarter of its input may be written over, here.
  __device__ void wait_until_taken(bool was_sent) {
    both_barrier();
    if (was_sent) barrier_wait(places.taken(thread.group), sent++ & 1);
  }
  __device__ void tell_written() const {
    publish_to_async();
    barrier_arrive(places.written(thread.group));
  }
  // What this warp stored in global memory may be copied from there. Late, when the stores are long
  // done: the fence waits for them.
  __device__ void tell_stored(std::uint32_t barrier) const {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __syncwarp();
    if (is_first_lane()) barrier_arrive(barrier);
    __syncwarp();
  }

  __device__ void deep_level(int level, int n, bool is_end, float (&dots)[2]) {
    const bool is_last = level + 1 == a.form.num_deep;
    float values[kDeepTile / 2] = {};
    float tops[2] = {};
    multiply<kDeepTile>(level == 0 ? a.form.x_strips : a.form.h_strips[level - 1], level > 0, true,
                        level == 1, n, values);
    if (level == 0) tell_stored(places.x0_stored());
    if (level > 0 && !(is_last && is_end)) tell_ready();
    std::uint32_t vectors_barrier;
    const std::uint32_t vectors =
        stream.take(forward_split_vector_bytes(kDeepTile), vectors_barrier);
    end_deep<kDeepTile>(values, SplitVectors<kDeepTile>(vectors), is_last, dots, tops);
    stream.leave(vectors_barrier);
    if (level > 0) wait_until_taken(level > 1);
    if (is_last) return;
    const int strips = forward_split_count(a.form.h_strips[level], quarter());
    if (level == 0) {
      char* own = scratch() + forward_split_h_place(a.form, thread.group);
      store_quarter<kDeepTile>(values, tops, strips, ToGlobal{own});
      return;
    }
    store_quarter<kDeepTile>(values, tops, strips, ToShared{h_place(quarter())});
    tell_written();
  }

  // products: see SplitCrossEnd.
  __device__ void cross_layer(int level, int n, bool is_end, float (&products)[kCrossTile / 2],
                              float (&values)[kCrossTile / 2], float (&dots)[2], float (&tops)[2]) {
    const bool is_last = level + 1 == a.form.num_cross;
    const bool has_h = a.form.num_deep > 1;
    multiply<kCrossTile>(a.form.x_strips, false, level > 0, false, n, products);
    if (level == 0 && has_h) tell_stored(places.h_stored());
    __syncwarp();
    if (is_last && has_h && is_first_lane()) barrier_arrive(places.x_done());
    if (!is_last || (!has_h && !is_end)) tell_ready();
    SplitCrossEnd<kCrossTile, kEachLeaves>{stream, is_last}.run(products, values, dots, tops);
    wait_until_taken(true);
  }

  // x_0 and the cross layers; the first deep level behind the former, the others behind the latter.
  // Each kind of level is called from one place: what runs once a tile comes from L2 as code.
  __device__ void levels(int tile, int n, bool is_end, float (&dots)[2]) {
    const int num_deep = a.form.num_deep;
    float products[kCrossTile / 2];
#pragma unroll 1
    for (int level = -1;; ++level) {
      const bool is_first = level < 0;
      const bool is_last = level + 1 == a.form.num_cross;
      float values[kCrossTile / 2];
      float tops[2] = {};
      if (is_first) {
        gather_x0<kCrossTile>(inputs, a, tile, forward_split_first(a.form.x_strips, quarter()),
                              x_count(), values, tops);
        __syncwarp();                // who had bad ids may have parted
        if (n == 0) cluster_wait();  // the other block's barriers are there
      } else {
        cross_layer(level, n, is_end, products, values, dots, tops);
      }
      if (!is_last) store_quarter<kCrossTile>(values, tops, x_count(), ToShared{place(quarter())});
      if (!is_last || num_deep > 1) tell_written();
      if (!is_first && !is_last) continue;
      if (is_first) keep_x0<kCrossTile>(values, scratch());  // late: what is stored behind waits
#pragma unroll 1
      for (int deep = is_first ? 0 : 1; deep < (is_first ? 1 : num_deep); ++deep)
        deep_level(deep, n, is_end, dots);
      if (is_last) return;
#pragma unroll
      for (float& product : products) product = 0.0f;
    }
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
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      float dots[2] = {};
      stream.ring.piece = stream.ring.begin;
      levels(tile, n, tile + tiles.stride >= tiles.end, dots);
      send_dots(n, dots);
    }
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
