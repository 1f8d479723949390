// The products of the one-kernel forward pass with cross layers, one after another.
//
// An output takes the place of its product's input, or one in which weights were: a block writes
// its own half once both of its warpgroups are done with the product, and the other half of the
// other block's memory once those of that block are (`ready`). What it sent is overwritten once the
// other block has it (`taken`).
#pragma once

#include "kernels/fused/cross/epilogue.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// Each half of the activations to the other block once it is written here, and that the other's has
// come; by one warp, since those that multiply have no time for it.
template <int kDeepTile>
__device__ void send_halves(const ForwardCrossArguments& a, const CrossPlaces& places, int rank) {
  const auto at_peer = [&](std::uint32_t address) { return address_in(address, 1 - rank); };
  const int num_exchanges = a.form.num_deep + a.form.num_cross - 1;
#pragma unroll 1
  for (int exchange = 0; exchange < num_exchanges; ++exchange) {
    const bool is_h = exchange > 0 && exchange < a.form.num_deep;
    const ForwardHalves halves = is_h ? ForwardHalves{kDeepTile / 4, kDeepTile / 4}
                                      : ForwardHalves{a.common.chunks[0], a.common.chunks[1]};
    const int x = exchange == 0 ? 0 : is_h ? places.offsets.deep : places.offsets.cross;
    const std::uint32_t half = places.base + x + halves.offset(rank);
    if (threadIdx.x % 32 == 0) {
      barrier_wait(places.written(), exchange & 1);
      if (exchange > 0) barrier_wait(places.ready(exchange), 0);
      copy_to_peer(at_peer(half), half, halves.chunks(rank) * kChunkStride,
                   at_peer(places.received(exchange)));
      barrier_wait(places.received(exchange), 0);
      if (exchange < a.form.num_deep || exchange + 1 < num_exchanges)
        arrive_in(at_peer(places.taken(exchange)));
    }
    __syncwarp();
  }
}

// The products, by the threads that multiply.
template <class T, int kCrossTile, int kDeepTile>
struct CrossProducts {
  const ForwardCrossArguments& a;
  const CrossPlaces& places;
  int rank;
  PieceStream stream{places};
  float dots[2] = {};

  __device__ std::uint32_t at_peer(std::uint32_t address) const {
    return address_in(address, 1 - rank);
  }
  __device__ ForwardHalves halves_of_x() const { return {a.common.chunks[0], a.common.chunks[1]}; }

  // What this thread wrote of the block's half, to products and to the warp that sends it.
  __device__ void publish() const {
    publish_to_async();
    barrier_arrive(places.written());
    block_barrier();
  }

  // sums = the activations at `x` by the next pieces, or are added to; own half first. The other
  // comes by `exchange`.
  template <int kTile>
  __device__ void multiply(std::uint32_t x, const ForwardHalves& halves, int exchange, bool adds,
                           float (&sums)[kTile / 2]) {
    const unsigned first_piece = stream.next;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const int half = rank ^ turn;
      if (turn == 1) barrier_wait(places.received(exchange), 0);
      stream.multiply_half<T, kTile>(chunk_operand(x + halves.offset(half), kChunkStride),
                                     halves.chunks(half) / 2, first_piece, adds || turn > 0, sums);
    }
    wgmma_wait<0>();
    wgmma_settle(sums);
  }

  // Behind a product that another follows: what was sent last, by `sent`, may be overwritten, by
  // weights too. Then where `output` goes, if there is one, nobody reads any more.
  __device__ void finish(int sent, int output) {
    barrier_wait(places.taken(sent), 0);
    stream.release(stream.next - 1);
    if (output < 0) return;
    if (threadIdx.x % 32 == 0) arrive_in(at_peer(places.ready(output)));
    block_barrier();
  }

  __device__ void deep_level(int level) {
    const ForwardThread thread;
    const ForwardHalves own{kDeepTile / 4, kDeepTile / 4};
    const int quarter = rank * 2 + thread.group;
    const int width = quarter_width(a.common.columns[level], quarter);
    const bool is_last = level + 1 == a.form.num_deep;
    const std::uint32_t deep = places.base + places.offsets.deep;
    const std::uint32_t bias = vectors() + (a.form.num_cross + 1) * 2 * kCrossTile * 4 +
                               (level * 2 + thread.group) * kDeepTile * 4 + thread.own() * 4;
    float sums[kDeepTile / 2];
    leave_unset(sums);
    multiply<kDeepTile>(level == 0 ? places.base : deep, level == 0 ? halves_of_x() : own, level,
                        false, sums);
    finish(level, is_last ? -1 : level + 1);
    if (is_last) return add_deep_head<kDeepTile>(sums, bias, bias + 2 * kDeepTile * 4, width, dots);
    const std::uint32_t target =
        deep + quarter * (kDeepTile / 8) * kChunkStride + thread.warp * 256 + thread.lane * 4;
    store_deep<T, kDeepTile>(sums, bias, target);
    clear_rest<kDeepTile>(width, target);
    publish();
  }

  // products: of all layers so far.
  __device__ __forceinline__ void cross_level(int level, const std::uint32_t (&x0)[kCrossTile / 4],
                                              float (&products)[kCrossTile / 2]) {
    const ForwardThread thread;
    const CrossShare share(a.common, rank, thread.group);
    const int sent = a.form.num_deep - 1 + level;
    const bool is_last = level + 1 == a.form.num_cross;
    const std::uint32_t cross = places.base + places.offsets.cross;
    const std::uint32_t place = cross + share.offset(thread);
    const std::uint32_t bias =
        vectors() + (level * 2 + thread.group) * kCrossTile * 4 + thread.own() * 4;
    multiply<kCrossTile>(level == 0 ? places.base : cross, halves_of_x(), level == 0 ? 0 : sent,
                         level > 0, products);
    if (is_last)
      return add_cross_head<T, kCrossTile>(products, x0, bias, bias + 2 * kCrossTile * 4,
                                           share.count, dots);
    finish(sent, sent + 1);
    store_cross<T, kCrossTile>(products, x0, bias, place, share.count);
    if (a.common.zero_chunk[rank] >= 0 && threadIdx.x < kForwardRows)
      store_words(cross + a.common.zero_chunk[rank] * kChunkStride + threadIdx.x * 16, {});
    publish();
  }

  __device__ std::uint32_t vectors() const { return places.base + places.offsets.vectors; }

  __device__ void run() {
    const ForwardThread thread;
    publish();
    barrier_wait(places.vectors_there(), 0);
    stream.start();
#pragma unroll 1
    for (int level = 0; level < a.form.num_deep; ++level) deep_level(level);
    const CrossShare share(a.common, rank, thread.group);
    std::uint32_t x0[kCrossTile / 4];
    load_own<kCrossTile>(places.base + share.offset(thread), share.count, x0);
    float products[kCrossTile / 2] = {};
#pragma unroll 1
    for (int level = 0; level < a.form.num_cross; ++level) cross_level(level, x0, products);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float dot = dots[r];
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
      if (thread.lane % 4 == 0)
        store_for_row(places, places.offsets.dots, rank * 2 + thread.group,
                      thread.first_row() + 8 * r, dot);
    }
    __syncwarp();
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
