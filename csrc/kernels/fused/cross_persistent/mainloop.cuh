// The products of the one-kernel forward pass for large batches: one warpgroup's, of its panel, in
// the order of forward_tall_layout.h.
#pragma once

#include "kernels/fused/cross_persistent/epilogue.cuh"
#include "kernels/fused/cross_persistent/panel.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

struct Nothing {
  __device__ void operator()() const {}
};

// Steps by the other half of x_l before x0 is asked for, and twice as many by the second
// warpgroup: weights come meanwhile, too.
constexpr int kTallFewSteps = 4;

template <class T, int kCrossTile, int kDeepTile>
struct TallProducts : TallPanel {
  int turn = 0;  // products made so far
  TallProduct product{RingWalk(places.ring())};

  // sums = the panel's input by the next weights, or are added to; own half first. comes: the other
  // half still does; from_peer: from the other block. between: called when the own half is
  // multiplied and some of the other is on its way to the tensor cores; before_end: when all is.
  template <int kTile, class Between, class BeforeEnd>
  __device__ void multiply(const TallHalves& halves, bool adds, bool comes, bool from_peer,
                           float (&sums)[2][kTile / 2], const Between& between,
                           const BeforeEnd& before_end) {
    keep_step();
    const int other = 1 - rank;
    if (comes && is_leader())
      barrier_expect(places.received(group), halves.chunks(other) * kChunkStride);
    const std::uint32_t own_half = panel() + halves.offset(rank);
    product.template multiply_half<T, kTile>(own_half, halves.chunks(rank) / 2, adds, sums);
    if (comes) barrier_wait(places.received(group), came++ & 1);
    if (from_peer && is_leader()) arrive_in(address_in(places.taken(group), other));
    const std::uint32_t other_half = panel() + halves.offset(other);
    const int steps = halves.chunks(other) / 2;
    int some = 0;
    if constexpr (!std::is_same_v<Between, Nothing>) {
      some = max(1, min(kTallFewSteps * (1 + group), steps / 2));
      product.template multiply_half<T, kTile>(other_half, some, true, sums);
      between();
    }
    product.template multiply_half<T, kTile>(other_half + some * 2 * kChunkStride, steps - some,
                                             true, sums);
    before_end();
    product.template finish<kTile>(sums);
  }

  // A product's biases and, where it is the last of its kind, head: to shared memory, for both
  // warpgroups. Those of the last but one are not used any more (forward_tall_fits).
  __device__ void fetch_vectors(bool is_cross, int level) {
    const int tile = is_cross ? kCrossTile : kDeepTile;
    const int levels = is_cross ? a.form.num_cross : a.form.num_deep;
    const int first = is_cross ? 0 : (a.form.num_cross + 1) * 2 * kCrossTile;
    const int bytes = (level + 1 == levels ? 4 : 2) * tile * 4;
    if (threadIdx.x == 0) {
      const std::uint32_t barrier = places.vectors_there(turn & 1);
      barrier_expect(barrier, bytes);
      copy_in(places.vectors(turn & 1),
              a.common.vectors + rank * a.vector_floats + first + level * 2 * tile, bytes, barrier);
    }
    __syncwarp();
  }
  // The thread's first number of them; head_bytes behind it that of the head.
  __device__ std::uint32_t wait_for_vectors() {
    const std::uint32_t vectors = places.vectors(turn & 1);
    barrier_wait(places.vectors_there(turn & 1), turn >> 1 & 1);
    ++turn;
    return vectors + ForwardThread().own() * 4;
  }

  template <TallLevel kLevel>
  __device__ void end_deep(const float (&sums)[2][kDeepTile / 2], int level, float (&dots)[2]) {
    const ForwardThread thread;
    constexpr int kTileBytes = kDeepTile / 8 * kChunkStride;
    const std::uint32_t vectors = kept(wait_for_vectors());
    const std::uint32_t place = kept(panel() + h_halves().offset(rank) + matrix_row_offset(thread));
    char* const stored = h_of(blockIdx.x) + thread.warp * 256 + thread.lane * 4;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      deep_tile<T, kDeepTile, kLevel>(sums[q], stored + q * kTileBytes, place + q * kTileBytes,
                                      vectors + q * kDeepTile * 4,
                                      quarter_width(a.common.columns[level], rank * 2 + q), dots);
      if constexpr (kLevel == TallLevel::kMiddle)
        send(h_halves(), q * (kDeepTile / 8), (q + 1) * (kDeepTile / 8), q == 1);
    }
  }
  template <bool kIsLast>
  __device__ void end_cross(const float (&sums)[2][kCrossTile / 2], float (&dots)[2]) {
    const std::uint32_t vectors = kept(wait_for_vectors());
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const CrossShare share(a.common, rank, q);
      cross_tile<T, kCrossTile, kIsLast>(
          sums[q], kept(panel() + share.first * kChunkStride + matrix_row_offset(ForwardThread())),
          vectors + q * kCrossTile * 4, share.count, dots);
      if constexpr (!kIsLast) {
        const TallHalves halves = x_halves();
        send(halves, q == 0 ? 0 : CrossShare(a.common, rank, 0).count,
             q == 0 ? share.count : halves.chunks(rank), q == 1);
      }
    }
  }

  __device__ void deep_level(int level, int n, bool is_end, float (&dots)[2]) {
    const bool is_last = level + 1 == a.form.num_deep;
    float sums[2][kDeepTile / 2] = {};
    fetch_vectors(false, level);
    multiply<kDeepTile>(level == 0 ? x_halves() : h_halves(), false, true, level != 1, sums,
                        Nothing{}, Nothing{});
    if (level > 0) {
      tell_ready();
      wait_until_taken(level > 1);
      if (is_last) fetch_rows(n + 1, !is_end);
    }
    if (is_last)
      end_deep<TallLevel::kLast>(sums, level, dots);
    else if (level == 0)
      end_deep<TallLevel::kFirst>(sums, level, dots);
    else
      end_deep<TallLevel::kMiddle>(sums, level, dots);
  }

  // products: of all layers so far.
  __device__ void cross_level(int level, int n, bool is_end, float (&products)[2][kCrossTile / 2],
                              float (&dots)[2]) {
    const bool is_last = level + 1 == a.form.num_cross;
    const bool has_h = a.form.num_deep > 1;
    fetch_vectors(true, level);
    multiply<kCrossTile>(
        x_halves(), level > 0, level > 0, level > 0, products,
        [&] {
          if (level > 0) bring_x0(n);
        },
        [&] {
          if (level == 0 && has_h) tell_stored();
        });
    if (!is_last || !has_h) tell_ready();
    wait_until_taken(true);
    if (level > 0) barrier_wait(places.x0_back(group), back++ & 1);
    if (is_last && has_h) {
      if (is_leader()) {
        wait_until_stored(n);
        barrier_expect(places.loaded(group), forward_tall_h_bytes(a.form));
        load_h(rank, places.loaded(group));
      }
      __syncwarp();
    }
    if (is_last)
      end_cross<true>(products, dots);
    else
      end_cross<false>(products, dots);
    if (!is_last) return;
    if (!has_h) return fetch_rows(n + 1, !is_end);
    panel_barrier();
    if (is_leader()) load_h(1 - rank, places.received(group));
    __syncwarp();
  }

  __device__ void cross_levels(int n, bool is_end, float (&dots)[2]) {
    float products[2][kCrossTile / 2] = {};
#pragma unroll 1
    for (int level = 0; level < a.form.num_cross; ++level)
      cross_level(level, n, is_end, products, dots);
  }

  __device__ void send_dots(int tile_turn, float (&dots)[2]) const {
    const ForwardThread thread;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float dot = dots[r];
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
      if (thread.lane % 4 == 0)
        store_in(address_in(places.value(tile_turn, 2 + rank, thread.first_row() + 8 * r), group),
                 dot, address_in(places.to_score(tile_turn), group));
    }
    __syncwarp();
  }

  __device__ void run(const TallTiles& tiles) {
    fetch_rows(0, true);
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      const bool is_end = tile + tiles.stride >= tiles.end;
      float dots[2] = {};
      take_rows(n);
      product.ring.piece = product.ring.begin;
      deep_level(0, n, is_end, dots);
      cross_levels(n, is_end, dots);
      if (a.form.num_deep > 1) barrier_wait(places.loaded(group), n & 1);
#pragma unroll 1
      for (int level = 1; level < a.form.num_deep; ++level) deep_level(level, n, is_end, dots);
      send_dots(n & 1, dots);
    }
    if (is_first_lane()) barrier_arrive(places.finished());
    __syncwarp();
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
