// The products of the one-kernel forward pass: a block makes its half of each level's columns for
// the cluster's 64 rows, a warpgroup a quarter.
//
// Weights stream through a ring of shared memory in the order of their use whatever the level, a
// few steps of 16 columns of k a slot. A block multiplies by its own half of the activations first,
// while the other's is still on its way.
#pragma once

#include "kernels/fused/mlp/smem_layout.h"
#include "kernels/gemm/epilogue.cuh"
#include "ptx/cluster.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kMultiplyingThreads = 256;

// How many chunks of a level's activations either block makes; those of block 0 come first.
struct ForwardHalves {
  int first;
  int second;

  __device__ int chunks(int rank) const { return rank == 0 ? first : second; }
  __device__ int offset(int rank) const { return rank == 0 ? 0 : first * kChunkStride; }
};

// A block's shared memory by address.
struct ForwardPlaces {
  ForwardShared offsets;
  std::uint32_t base;

  __device__ std::uint32_t activations(int level) const {
    return base + (level % 2 == 0 ? 0 : offsets.h);
  }
  __device__ std::uint32_t full(int slot) const { return base + offsets.barriers + 16 * slot; }
  __device__ std::uint32_t empty(int slot) const { return full(slot) + 8; }
  __device__ std::uint32_t received(int level) const { return full(kForwardMaxSlots) + 8 * level; }
  __device__ std::uint32_t vectors_there() const { return received(kForwardMaxLevels); }
  __device__ std::uint32_t looked_up() const { return received(kForwardMaxLevels + 1); }
  __device__ std::uint32_t squared() const { return received(kForwardMaxLevels + 2); }
  __device__ std::uint32_t to_score() const { return received(kForwardMaxLevels + 3); }
};

// How wgmma finds 16 columns (two chunks) without swizzle: `chunk_bytes` from one to the next.
__device__ inline std::uint64_t chunk_operand(std::uint32_t address, int chunk_bytes) {
  constexpr std::uint64_t kEightRows = 128 / 16;
  return (kEightRows << 32) | (static_cast<std::uint64_t>(chunk_bytes / 16) << 16) |
         ((address & 0x3ffff) >> 4);
}

// sums += `kSteps` steps of x by w, given to the tensor cores at once. With a branch among them the
// compiler cannot tell how many are on their way: a wait for all but the last of such groups would
// then be one for that, too.
template <class T, int kTile, int kSteps>
__device__ void multiply_steps(std::uint64_t x, std::uint64_t w, bool add,
                               float (&sums)[kTile / 2]) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    Wgmma<kTile>::template shared<T>(sums, x + i * (2 * kChunkStride / 16),
                                     w + i * (forward_step_bytes(kTile) / 16), add || i > 0);
  wgmma_commit();
}

// One warp's place in the ring of weights.
template <int kTile>
struct WeightRing {
  const ForwardPlaces& places;
  int step = 0;  // of the slot
  int slot = 0;
  int phase = 0;

  static constexpr int kSteps = forward_slot_steps(kTile);
  static constexpr int kStepBytes = forward_step_bytes(kTile);

  __device__ std::uint32_t weights() const {
    return places.base + places.offsets.ring + (slot * kSteps + step) * kStepBytes;
  }
  __device__ void advance_slot() {
    step = 0;
    if (++slot == places.offsets.slots) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ void release(int used) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(places.empty(used));
  }

  // Copying thread `filler`: its slots of all steps, one after the other.
  __device__ void fill(const char* source, int steps, int filler) {
    for (int skipped = 0; skipped < filler; ++skipped) advance_slot();
#pragma unroll 1
    for (int first = filler * kSteps; first < steps; first += kForwardFillers * kSteps) {
      const int bytes = min(steps - first, kSteps) * kStepBytes;
      barrier_wait(places.empty(slot), phase ^ 1);
      barrier_expect(places.full(slot), bytes);
      copy_in(weights(), source + first * kStepBytes, bytes, places.full(slot));
      for (int skipped = 0; skipped < kForwardFillers; ++skipped) advance_slot();
    }
  }

  // sums += `steps` steps of activations from x on by the next weights. A slot's products are given
  // to the tensor cores at once; those of the slot before are done by then, and it is released.
  template <class T>
  __device__ void multiply_half(std::uint64_t x, int steps, bool is_first, int& pending,
                                float (&sums)[kTile / 2]) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    const int group = threadIdx.x / 128;
#pragma unroll 1
    while (steps > 0) {
      if (step == 0) barrier_wait(places.full(slot), phase);
      const std::uint64_t w = chunk_operand(weights() + group * kGroupBytes, 2 * kGroupBytes);
      const int count = min(steps, kSteps - step);
      if (count == kSteps) {
        multiply_steps<T, kTile, kSteps>(x, w, !is_first, sums);
      } else {
#pragma unroll 1
        for (int i = 0; i < count; ++i)
          multiply_steps<T, kTile, 1>(x + i * (2 * kChunkStride / 16), w + i * (kStepBytes / 16),
                                      !is_first || i > 0, sums);
      }
      x += count * (2 * kChunkStride / 16);
      is_first = false;
      steps -= count;
      step += count;
      if (step < kSteps) continue;
      wgmma_wait<1>();
      if (pending >= 0) release(pending);
      pending = slot;
      advance_slot();
    }
  }

  // sums = the activations of both halves by the next weights; own half first.
  template <class T>
  __device__ void multiply(int level, const ForwardHalves& halves, int rank,
                           float (&sums)[kTile / 2]) {
    int pending = -1;  // slot
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const int half = rank ^ turn;
      if (turn == 1) barrier_wait(places.received(level), 0);
      const std::uint32_t x = places.activations(level) + halves.offset(half);
      multiply_half<T>(chunk_operand(x, kChunkStride), halves.chunks(half) / 2, turn == 0, pending,
                       sums);
    }
    wgmma_wait<0>();
    wgmma_settle(sums);
    if (pending >= 0) release(pending);
  }
};

// A thread's columns of its quarter are 8 j + own() + {0, 1}; its rows first_row() and 8 below.
struct ForwardThread {
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32 % 4;
  int group = threadIdx.x / 128;

  __device__ int own() const { return lane % 4 * 2; }
  __device__ int first_row() const { return warp * 16 + lane / 4; }
};

// How many columns of a level a quarter makes.
__device__ inline int quarter_width(int columns, int quarter) {
  return forward_first_column(columns, quarter + 1) - forward_first_column(columns, quarter);
}

// The level's output into the next level's activations, ReLU applied.
template <class T, int kTile>
__device__ void store_level(const float (&sums)[kTile / 2], std::uint32_t bias,
                            std::uint32_t target) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    const float2 add = load_pair(bias + j * 32);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Pair pair = to_pair<Pair>(at_least(sums[4 * j + 2 * r] + add.x, 0.0f),
                                      at_least(sums[4 * j + 2 * r + 1] + add.y, 0.0f));
      store_word(target + j * kChunkStride + r * 128, reinterpret_cast<const std::uint32_t&>(pair));
    }
  }
}

// Zeros in the quarter's columns from `width` on, which may be infinite or not a number.
template <int kTile>
__device__ void clear_rest(int width, std::uint32_t target) {
#pragma unroll 1
  for (int j = width / 8; j < kTile / 8; ++j)
    for (int i = 0; i < 4; ++i)
      if (8 * j + ForwardThread().own() + i % 2 >= width)
        store_short(target + j * kChunkStride + i / 2 * 128 + i % 2 * 2, 0);
}

// The thread's part of the head's dot for its two rows, of the quarter's first `width` columns.
template <int kTile>
__device__ void add_head(const float (&sums)[kTile / 2], std::uint32_t bias, std::uint32_t head,
                         int width, float (&dots)[2]) {
  const int left = width - ForwardThread().own();
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    const float2 add = load_pair(bias + j * 32);
    const float2 weight = load_pair(head + j * 32);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = at_least(sums[4 * j + 2 * r] + add.x, 0.0f);
      const float y = at_least(sums[4 * j + 2 * r + 1] + add.y, 0.0f);
      if (8 * j < left) dots[r] = fmaf(x, weight.x, dots[r]);
      if (8 * j + 1 < left) dots[r] = fmaf(y, weight.y, dots[r]);
    }
  }
}

// The thread's four sums of chunk `j` of its quarter.
template <int kTile>
__device__ float4 sums_of_chunk(const float (&sums)[kTile / 2], int j) {
  float4 four{};
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i)
    if (i == j) four = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  return four;
}

// The first level's extras, to the block that scores their row.
template <int kTile>
__device__ void take_extras(const float (&sums)[kTile / 2], std::uint32_t bias,
                            const ForwardArguments& a, int rank, const ForwardPlaces& places) {
  const ForwardThread thread;
  const int quarter = rank * 2 + thread.group;
  const int column = quarter_width(a.columns[0], quarter);
  const int first = a.first_extra[quarter];
  const int count = a.first_extra[quarter + 1] - first;
  const std::uint32_t extras = address_in(places.base + places.offsets.extras, thread.warp / 2);
  const std::uint32_t barrier = address_in(places.to_score(), thread.warp / 2);
#pragma unroll 1
  for (int j = column / 8; 8 * j < column + count; ++j) {
    const float4 four = sums_of_chunk<kTile>(sums, j);
    const float2 add = load_pair(bias + j * 32);
    const float values[] = {four.x + add.x, four.y + add.y, four.z + add.x, four.w + add.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int extra = 8 * j + thread.own() + i % 2 - column;
      if (extra < 0 || extra >= count) continue;
      const int row = thread.first_row() + i / 2 * 8;
      const int place = row % 32 * places.offsets.extras_stride + first + extra;
      store_in(extras + 4 * place, values[i], barrier);
    }
  }
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
