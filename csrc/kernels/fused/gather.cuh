// The gather of the kernels for small batches (mlp, cross): 256 threads of a CTA gather its half of
// the fields for the cluster's 64 samples straight into shared memory, in wgmma's layout.
//
// Two threads share an embedding row, 16 bytes each; a warp has 16 samples of one field slice at a
// time, so ids are read coalesced; eight warps are four groups of 16 samples for every other slice.
// kInFlight rows a thread are on their way together; all of their ids before any row. Good ids take
// few instructions and no branch, since instructions are fetched as they run; bad ids are gone over
// again.
#pragma once

#include <cstddef>

#include "kernels/batch_memory.h"
#include "kernels/fused/layout.h"
#include "kernels/fused/mlp/smem_layout.h"
#include "kernels/fused/score.cuh"
#include "ptx/global_memory.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/shared_memory.cuh"

namespace dpiframe {

constexpr int kInFlight = 10;

// Of the consumer warpgroups, which gather and multiply.
__device__ inline void consumer_barrier() {
  named_barrier_sync<1, 256>();
}

// A thread's sample. Eight neighbouring threads have even or odd samples alone, whose 16 bytes and
// those of the next chunk are all in different banks.
struct GatherSample {
  int of_tile;
  int half;        // of 16 bytes, of a slice's chunks
  std::int64_t b;  // of the batch; its last in place of those beyond
  bool in_batch;

  __device__ GatherSample(std::int64_t first_sample, std::int64_t batch) {
    const int pair = threadIdx.x % 32 / 2;
    of_tile = threadIdx.x / 32 % 4 * 16 + (pair & 8) + (pair & 3) * 2 + (pair >> 2 & 1);
    half = threadIdx.x & 1;
    in_batch = first_sample + of_tile < batch;
    b = in_batch ? first_sample + of_tile : batch - 1;
  }
};

struct SmemGather {
  const BatchMemory& inputs;
  const FusedMlpParams& a;
  const GatherSample& sample;
  const FieldSlice* slices;  // the CTA's, in shared memory
  int begin;                 // the first one's number
  int end;
  std::uint32_t x;  // the thread's 16 bytes of x_0's first chunk

  using Ids = uint2[kInFlight];  // 8 bytes, or 4 and 0

  __device__ static std::uint64_t join(std::uint32_t low, std::uint32_t high) {
    return std::uint64_t{high} << 32 | low;
  }

  // Of slices first, first + 2, ..; the last in place of those beyond. Not by __ldg: behind the
  // barrier that follows, next to its use, each would wait for the one before.
  __device__ void load_ids(int first, Ids& ids) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const char* base = static_cast<const char*>(inputs.ids) + (sample.b << (is_int64 ? 3 : 2));
    const std::int64_t stride = inputs.ids_stride << (is_int64 ? 3 : 2);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const char* id = base + a.ids_rows[min(first + 2 * u, end - 1)] * stride;
      if (is_int64)
        ids[u] = ld_global_v2(id);
      else
        ids[u] = {ld_global_u32(id), 0};
    }
  }

  __device__ bool is_row(const uint2& id, std::uint32_t rows) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const std::uint32_t high = is_int64 ? id.y : static_cast<std::uint32_t>(int(id.x) >> 31);
    return (high == 0) & (id.x < rows);
  }

  // Their rows to x_0. Returns the thread's part of the wide sum.
  __device__ float gather(int first, const Ids& ids) const {
    uint4 values[kInFlight] = {};
    float wides[kInFlight] = {};
    std::uint32_t targets[kInFlight];
    bool any_bad = false;
    const std::uint32_t slices_at = smem_address(slices);
    static_assert(offsetof(FieldSlice, wide) == 8 && offsetof(FieldSlice, rows) == 16 &&
                  offsetof(FieldSlice, num_chunks) == 28);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + 2 * u;
      const std::uint32_t slice = slices_at + (min(f, end - 1) - begin) * sizeof(FieldSlice);
      const uint4 pointers = ld_shared_v4(slice);      // table, wide
      const uint4 numbers = ld_shared_v4(slice + 16);  // rows, row_bytes, x_offset, num_chunks
      const std::uint32_t row = ids[u].x;
      const bool present = (f < end) & sample.in_batch;
      const bool good = present & is_row(ids[u], numbers.x);
      const bool has_chunk = sample.half < static_cast<int>(numbers.w);
      const std::uint64_t table = join(pointers.x, pointers.y);
      const std::uint64_t wide = join(pointers.z, pointers.w);
      const std::uint64_t source = table + std::uint64_t{row} * numbers.y + 16 * sample.half;
      if (good & has_chunk) values[u] = __ldg(reinterpret_cast<const uint4*>(source));
      if (good & (wide != 0) & (sample.half == u % 2))
        wides[u] = __ldg(reinterpret_cast<const float*>(wide) + row);
      targets[u] = (f < end) & has_chunk ? x + numbers.z : 0;
      any_bad = any_bad | (present & !good);
    }
    float wide = 0.0f;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (targets[u] != 0) st_shared_v4(targets[u], values[u]);
      wide += wides[u];
    }
    if (any_bad) [[unlikely]]
      wide += replace_bad(first);
    return wide;
  }

  // Bad ids, of which x_0 has zeros so far: counts them, once a field, and loads the rows that the
  // policy puts in their place.
  __device__ float replace_bad(int first) const {
    float wide = 0.0f;
#pragma unroll 1
    for (int f = first; f < end && f < first + 2 * kInFlight; f += 2) {
      const FieldSlice& slice = slices[f - begin];
      const std::int64_t at = a.ids_rows[f] * inputs.ids_stride + sample.b;
      const std::int64_t id = inputs.ids_are_int64 != 0
                                  ? static_cast<const std::int64_t*>(inputs.ids)[at]
                                  : static_cast<const std::int32_t*>(inputs.ids)[at];
      if (id >= 0 && id < slice.rows) continue;
      if (slice.counter >= 0 && sample.half == 0)
        count_bad_id(inputs.report + a.report, a.num_fields, slice.counter, sample.b);
      if (inputs.use_oov == 0 || slice.oov_row < 0) continue;
      const char* row = slice.table + slice.oov_row * slice.row_bytes;
      if (sample.half < slice.num_chunks)
        st_shared_v4(x + slice.x_offset, __ldg(reinterpret_cast<const uint4*>(row) + sample.half));
      if (slice.wide != nullptr && sample.half == 0) wide += __ldg(slice.wide + slice.oov_row);
    }
    return wide;
  }
};

// The CTA's half of x_0, at `x`; `slices`: shared memory for them. Returns the wide sum of the two
// threads that share the sample, of their slices.
__device__ inline float gather_half(const BatchMemory& inputs, const FusedMlpParams& a, int rank,
                                    const GatherSample& sample, FieldSlice* slices,
                                    std::uint32_t x) {
  const int begin = rank == 0 ? 0 : a.slices_end[0];
  const SmemGather own{inputs,
                       a,
                       sample,
                       slices,
                       begin,
                       a.slices_end[rank],
                       x + sample.half * kChunkStride + sample.of_tile * 16};
  const int thread = threadIdx.x;
  const bool has_word = thread < (own.end - begin) * int(sizeof(FieldSlice) / 16);
  uint4 word{};
  if (has_word) word = __ldg(reinterpret_cast<const uint4*>(a.slices + begin) + thread);
  float wide = 0.0f;
  bool staged = false;
#pragma unroll 1
  for (int first = begin + thread / 128; first < own.end || !staged; first += 2 * kInFlight) {
    SmemGather::Ids ids;
    own.load_ids(first, ids);
    if (!staged) {
      if (has_word) reinterpret_cast<uint4*>(slices)[thread] = word;
      consumer_barrier();
      staged = true;
    }
    wide += own.gather(first, ids);
  }
  if (a.zero_chunk[rank] >= 0 && thread < kTileSamples)
    st_shared_v4(x + a.zero_chunk[rank] * kChunkStride + thread * 16, {});
  __syncwarp();
  return wide + __shfl_xor_sync(0xffffffffu, wide, 1);
}

}  // namespace dpiframe
