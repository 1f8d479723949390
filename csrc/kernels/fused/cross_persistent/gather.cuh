// The gather of the persistent fused cross kernel, and its scores: by two warps beside the consumer
// warpgroups.
//
// Embedding rows are anywhere in memory, which delivers so many a cycle. So a tile's are gathered
// all the while that the tile before is multiplied, into global memory in the layout that x_0 has
// in shared memory (they stay in L2); when a panel is free, one TMA bulk copy brings its half. It
// is kept until the tile is done, for the cross layers: so there are two buffers, used alternately.
#pragma once

#include "kernels/batch_memory.h"
#include "kernels/fused/cross_persistent/mainloop.cuh"
#include "kernels/fused/gather_id.cuh"
#include "kernels/fused/score.cuh"
#include "ptx/global_memory.cuh"

namespace dpiframe {

constexpr int kGatheringThreads = 64;
constexpr int kFirstThreads = 256;  // gather a cluster's first tile
// Embedding rows of a thread that are on their way together, of the first tile and of others.
constexpr int kFirstInFlight = 10;
constexpr int kNextInFlight = 2;

// Of both gathering warps, whose lanes may have diverged over bad ids or samples beyond the batch.
__device__ inline void gather_barrier() {
  __syncwarp();
  named_barrier_sync<3, 64>();
}

struct PersistentGather {
  using B = FusedCrossPersistentBarriers;

  const BatchMemory& inputs;
  const FusedCrossPersistentParams& a;
  const FusedCrossPersistentSmem& smem;
  const FieldSlice* slices;  // the CTA's, in shared memory
  char* x0;                  // in scratch, of the first panel and turn
  int rank;
  int thread;  // of 64
  int begin;   // the first slice's number
  int end;

  // The embedding row: null if there is none. A bad id is counted, once a field.
  __device__ const char* row_of(const FieldSlice& slice, std::int64_t id, std::int64_t b,
                                std::int64_t& row) const {
    row = id;
    if (id >= 0 && id < slice.rows) [[likely]]
      return slice.table + id * slice.row_bytes;
    if (slice.counter >= 0)
      count_bad_id(inputs.report + a.mlp.report, a.mlp.num_fields, slice.counter, b);
    row = inputs.use_oov != 0 ? slice.oov_row : -1;
    return row < 0 ? nullptr : slice.table + row * slice.row_bytes;
  }

  // A sample's slices first, first + kStride, .. to where they belong in its panel's half. Returns
  // their part of its wide sum.
  template <int kInFlight, int kStride>
  __device__ float gather(int first, std::int64_t b, char* target) const {
    std::int64_t ids[kInFlight];
    uint4 values[kInFlight][2] = {};
    float wide = 0.0f;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      ids[u] = b < inputs.batch
                   ? load_id(inputs, a.mlp.ids_rows[min(first + kStride * u, end - 1)], b)
                   : 0;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + kStride * u;
      if (f >= end || b >= inputs.batch) break;
      const FieldSlice& slice = slices[f - begin];
      std::int64_t row;
      const char* source = row_of(slice, ids[u], b, row);
      if (row < 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half < slice.num_chunks)
          values[u][half] = __ldg(reinterpret_cast<const uint4*>(source) + half);
      if (slice.wide != nullptr) wide += __ldg(slice.wide + row);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + kStride * u;
      if (f >= end) break;
      const FieldSlice& slice = slices[f - begin];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half < slice.num_chunks)
          __stcg(reinterpret_cast<uint4*>(target + slice.x_offset + half * kChunkStride),
                 values[u][half]);
    }
    return wide;
  }
  // Where a sample of panel g begins in its half, counted from the start of all of x_0.
  __device__ char* target(int turn, int g, int sample) const {
    const int half_bytes = a.tiling.x_chunks[rank] * kChunkStride;
    const int before = rank == 0 ? 0 : a.tiling.x_chunks[0] * kChunkStride;
    return x0 + (2 * turn + g) * half_bytes - before + sample * 16;
  }

  // The cluster's first tile, by kFirstThreads threads: every other slice of a sample a thread. The
  // parts of its wide sum are where the second tile's values will be.
  __device__ void gather_first(int tile) const {
    const int sample = threadIdx.x % kPersistentSamples;
    const int part = threadIdx.x / kPersistentSamples;
    const std::int64_t b = std::int64_t{tile} * kPersistentSamples + sample;
    float wide = 0.0f;
#pragma unroll 1
    for (int first = begin + part; first < end; first += 2 * kFirstInFlight)
      wide += gather<kFirstInFlight, 2>(first, b,
                                        target(0, sample / kTileSamples, sample % kTileSamples));
    fence_proxy_async_global();
    st_shared_u32(first_wide(part, sample), __float_as_uint(wide));
  }
  __device__ std::uint32_t first_wide(int part, int sample) const {
    return smem.value(1, 0, 0) + (part * kPersistentSamples + sample) * 4;
  }

  // A tile's x_0, to the buffers of `turn`; the wide sums of the thread's samples.
  __device__ void gather_tile(int tile, int turn, float (&wide)[2]) const {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const std::int64_t b = std::int64_t{tile} * kPersistentSamples + g * kTileSamples + thread;
      wide[g] = 0.0f;
#pragma unroll 1
      for (int first = begin; first < end; first += kNextInFlight)
        wide[g] += gather<kNextInFlight, 1>(first, b, target(turn, g, thread));
    }
    fence_proxy_async_global();
    mbarrier_arrive(smem.barrier<B::kTileGathered>());
  }
  // Zeros in the chunk that no field fills.
  __device__ void clear_padding() const {
    const int zero = a.mlp.zero_chunk[rank];
    if (zero < 0) return;
    const int chunk = zero - (rank == 0 ? 0 : a.tiling.x_chunks[0]);
#pragma unroll
    for (int i = 0; i < 4; ++i)  // of both panels and turns
      __stcg(reinterpret_cast<uint4*>(x0 + (i * a.tiling.x_chunks[rank] + chunk) * kChunkStride +
                                      thread * 16),
             uint4{});
  }

  // A tile's wide sums, to the CTAs that score its samples: CTA g scores panel g.
  __device__ void send_wide(int turn, const float (&wide)[2]) const {
#pragma unroll
    for (int g = 0; g < 2; ++g)
      st_async(mapa(smem.value(turn, rank, thread), g), wide[g],
               mapa(smem.barrier<B::kScoreFull>(turn), g));
  }

  // The CTA's samples of the cluster's n-th tile, once all that belongs to them is there. What a
  // turn's values were before is scored: the peer did so before it gathered this tile.
  __device__ void score(int n, int tile, const float (&wide)[2]) const {
    const int turn = n & 1;
    send_wide(turn, wide);
    mbarrier_wait(smem.barrier<B::kScoreFull>(turn), (n >> 1) & 1);
    float sum = a.mlp.bias;
#pragma unroll
    for (int kind = 0; kind < 4; ++kind) sum += ld_shared_f32(smem.value(turn, kind, thread));
    gather_barrier();
    if (thread == 0)
      mbarrier_arrive_expect_tx(smem.barrier<B::kScoreFull>(turn), 4 * kTileSamples * 4);
    __syncwarp();
    const std::int64_t b = std::int64_t{tile} * kPersistentSamples + rank * kTileSamples + thread;
    write_score(inputs, b, sum);
  }

  // All tiles of the cluster, behind gather_first. A tile is scored while the next is multiplied.
  __device__ void run(const TileScheduler& tiles) const {
    float wide[2];
    float before[2] = {};
    clear_padding();
    fence_proxy_async_global();
#pragma unroll
    for (int g = 0; g < 2; ++g)
      wide[g] = ld_shared_f32(first_wide(0, g * kTileSamples + thread)) +
                ld_shared_f32(first_wide(1, g * kTileSamples + thread));
    mbarrier_arrive(smem.barrier<B::kTileGathered>());
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      mbarrier_wait(smem.barrier<B::kTileLoaded>(), n & 1);
      if (n > 0) score(n - 1, tile - tiles.stride, before);
      before[0] = wide[0];
      before[1] = wide[1];
      if (tile + tiles.stride < tiles.end) gather_tile(tile + tiles.stride, (n + 1) & 1, wide);
    }
    mbarrier_wait(smem.barrier<B::kAllDone>(), 0);
    score(n - 1, tiles.first + (n - 1) * tiles.stride, before);
  }
};

}  // namespace dpiframe
