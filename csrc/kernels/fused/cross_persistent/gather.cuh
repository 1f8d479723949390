// The lookup of the one-kernel forward pass for large batches, and its scores: by two warps beside
// those that multiply.
//
// Rows of tables come from memory in no order, as many a clock as the memory gives. So a tile's are
// gathered all the while that the one before is multiplied, into global memory as x0 is to lie in
// shared memory (they stay in L2); when a panel is free, one bulk copy brings its half. It is kept
// until the tile is done, for the cross layers: so there are two places, used by turns.
#pragma once

#include "kernels/batch_memory.h"
#include "kernels/fused/cross_persistent/weight_pipeline.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kGatheringThreads = 64;
constexpr int kFirstThreads = 256;  // look up a cluster's first tile
// Rows of a thread that are on their way together, of the first tile and of others.
constexpr int kFirstAtOnce = 10;
constexpr int kAskedAtOnce = 2;

// Of both gathering warps, whose lanes may have parted over bad ids or rows beyond the batch.
__device__ inline void gather_barrier() {
  __syncwarp();
  asm volatile("bar.sync 3, 64;" ::: "memory");
}

struct TallGather {
  const BatchMemory& inputs;
  const ForwardTallArguments& a;
  const TallPlaces& places;
  const ForwardField* fields;  // of the block, in shared memory
  char* rows;                  // where halves of x0 are gathered, of the first panel and turn
  int rank;
  int thread;  // of 64
  int begin;   // the first field's number
  int end;

  __device__ std::int64_t id_of(int f, std::int64_t b) const {
    const std::int64_t place = a.common.ids_rows[f] * inputs.ids_stride + b;
    return inputs.ids_are_int64 != 0
               ? __ldg(static_cast<const long long*>(inputs.ids) + place)
               : std::int64_t{__ldg(static_cast<const int*>(inputs.ids) + place)};
  }

  // The row of a table: null if there is none, which is then counted, once a field.
  __device__ const char* row_of(const ForwardField& field, std::int64_t id, std::int64_t b,
                                std::int64_t& row) const {
    row = id;
    if (id >= 0 && id < field.rows) [[likely]]
      return field.table + id * field.row_bytes;
    if (field.slot >= 0) {
      unsigned long long* report = inputs.report + a.common.report;
      atomicAdd(report + field.slot, 1ull);
      atomicMin(report + a.common.num_slots,
                static_cast<unsigned long long>(b) * a.common.num_slots + field.slot);
    }
    row = inputs.use_oov != 0 ? field.oov_row : -1;
    return row < 0 ? nullptr : field.table + row * field.row_bytes;
  }

  // A sample's fields first, first + kStride, .. as 16 bytes each to where they lie in its panel's
  // half. Returns their part of its wide sum.
  template <int kAtOnce, int kStride>
  __device__ float gather(int first, std::int64_t b, char* target) const {
    std::int64_t ids[kAtOnce];
    uint4 pieces[kAtOnce][2] = {};
    float wide = 0.0f;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      ids[u] = b < inputs.batch ? id_of(min(first + kStride * u, end - 1), b) : 0;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int f = first + kStride * u;
      if (f >= end || b >= inputs.batch) break;
      const ForwardField& field = fields[f - begin];
      std::int64_t row;
      const char* source = row_of(field, ids[u], b, row);
      if (row < 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half < field.pieces)
          pieces[u][half] = __ldg(reinterpret_cast<const uint4*>(source) + half);
      if (field.wide != nullptr) wide += __ldg(field.wide + row);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int f = first + kStride * u;
      if (f >= end) break;
      const ForwardField& field = fields[f - begin];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half < field.pieces)
          __stcg(reinterpret_cast<uint4*>(target + field.place + half * kChunkStride),
                 pieces[u][half]);
    }
    return wide;
  }
  // Where row `row` of panel g begins in its half, from the start of all of x0 on.
  __device__ char* target(int turn, int g, int row) const {
    const int half_bytes = a.form.x_chunks[rank] * kChunkStride;
    const int before = rank == 0 ? 0 : a.form.x_chunks[0] * kChunkStride;
    return rows + (2 * turn + g) * half_bytes - before + row * 16;
  }

  // The cluster's first tile, by kFirstThreads threads: every other field of a sample a thread. Of
  // its wide sum the parts lie where the second tile's values will.
  __device__ void look_up_first(int tile) const {
    const int row = threadIdx.x % kTallRows;
    const int part = threadIdx.x / kTallRows;
    const std::int64_t b = std::int64_t{tile} * kTallRows + row;
    float wide = 0.0f;
#pragma unroll 1
    for (int first = begin + part; first < end; first += 2 * kFirstAtOnce)
      wide += gather<kFirstAtOnce, 2>(first, b, target(0, row / kForwardRows, row % kForwardRows));
    publish_global();
    store_word(first_wide(part, row), __float_as_uint(wide));
  }
  __device__ std::uint32_t first_wide(int part, int row) const {
    return places.value(1, 0, 0) + (part * kTallRows + row) * 4;
  }

  // A tile's rows, to the places of `turn`; the wide sums of the thread's samples.
  __device__ void look_up(int tile, int turn, float (&wide)[2]) const {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const std::int64_t b = std::int64_t{tile} * kTallRows + g * kForwardRows + thread;
      wide[g] = 0.0f;
#pragma unroll 1
      for (int first = begin; first < end; first += kAskedAtOnce)
        wide[g] += gather<kAskedAtOnce, 1>(first, b, target(turn, g, thread));
    }
    publish_global();
    barrier_arrive(places.rows_there());
  }
  // Zeros in the chunk that no field fills.
  __device__ void clear_rest() const {
    const int zero = a.common.zero_chunk[rank];
    if (zero < 0) return;
    const int chunk = zero - (rank == 0 ? 0 : a.form.x_chunks[0]);
#pragma unroll
    for (int i = 0; i < 4; ++i)  // both panels', by turns
      __stcg(reinterpret_cast<uint4*>(rows + (i * a.form.x_chunks[rank] + chunk) * kChunkStride +
                                      thread * 16),
             uint4{});
  }

  // A tile's wide sums, to the blocks that score its rows: panel g's are block g's.
  __device__ void send_wide(int turn, const float (&wide)[2]) const {
#pragma unroll
    for (int g = 0; g < 2; ++g)
      store_in(address_in(places.value(turn, rank, thread), g), wide[g],
               address_in(places.to_score(turn), g));
  }

  // The cluster's n-th tile's rows that are the block's, once all that belongs to them is there.
  // What a turn's place held before is scored: the other block did so before it gathered this tile.
  __device__ void score(int n, int tile, const float (&wide)[2]) const {
    const int turn = n & 1;
    send_wide(turn, wide);
    barrier_wait(places.to_score(turn), (n >> 1) & 1);
    float sum = a.common.bias;
#pragma unroll
    for (int kind = 0; kind < 4; ++kind) sum += load_float(places.value(turn, kind, thread));
    gather_barrier();
    if (thread == 0) barrier_expect(places.to_score(turn), 4 * kForwardRows * 4);
    __syncwarp();
    const std::int64_t b = std::int64_t{tile} * kTallRows + rank * kForwardRows + thread;
    if (b >= inputs.batch) return;
    if (inputs.logits != nullptr) inputs.logits[b] = sum;
    if (inputs.scores != nullptr) inputs.scores[b] = 1.0f / (1.0f + expf(-sum));
  }

  // All tiles of the cluster, behind look_up_first. A tile is scored while the next one is
  // multiplied.
  __device__ void run(const TallTiles& tiles) const {
    float wide[2];
    float before[2] = {};
    clear_rest();
    publish_global();
#pragma unroll
    for (int g = 0; g < 2; ++g)
      wide[g] = load_float(first_wide(0, g * kForwardRows + thread)) +
                load_float(first_wide(1, g * kForwardRows + thread));
    barrier_arrive(places.rows_there());
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      barrier_wait(places.rows_taken(), n & 1);
      if (n > 0) score(n - 1, tile - tiles.stride, before);
      before[0] = wide[0];
      before[1] = wide[1];
      if (tile + tiles.stride < tiles.end) look_up(tile + tiles.stride, (n + 1) & 1, wide);
    }
    barrier_wait(places.finished(), 0);
    score(n - 1, tiles.first + (n - 1) * tiles.stride, before);
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
