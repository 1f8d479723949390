// The lookup of the one-kernel forward pass: a block gathers its half of the fields for the
// cluster's 64 rows straight into shared memory.
//
// Two threads share a row of a table, 16 bytes each; a warp has 16 samples of one field at a time,
// so ids are read coalesced; eight warps are four groups of 16 samples for every other field.
// kInFlight rows a thread are on their way together, their ids are asked for before anything else.
// The way of good ids is short and without branches, for its instructions are fetched as it runs;
// bad ids are gone over again.
#pragma once

#include "cuda/conversions.cuh"
#include "kernels/batch_memory.h"
#include "kernels/fused/mlp/mainloop.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kInFlight = 10;

// A thread's sample. Eight neighbouring threads have even or odd rows alone, whose 16 bytes and
// those of the next chunk are all in different banks.
struct ForwardSample {
  int row;  // of the cluster
  int half;
  std::int64_t b;  // the last of the batch in place of those beyond
  bool in_batch;

  __device__ ForwardSample(std::int64_t first_row, std::int64_t batch) {
    const int pair = threadIdx.x % 32 / 2;
    row = threadIdx.x / 32 % 4 * 16 + (pair & 8) + (pair & 3) * 2 + (pair >> 2 & 1);
    half = threadIdx.x & 1;
    in_batch = first_row + row < batch;
    b = in_batch ? first_row + row : batch - 1;
  }
};

// Ids as they were read: 8 bytes, or the lower 4.
using ForwardIds = uint2[kInFlight];

// Fields of the block, among the first 256 threads.
struct ForwardGather {
  const BatchMemory& inputs;
  const ForwardArguments& a;
  const ForwardSample& sample;
  const ForwardField* fields;  // of the block, in shared memory
  int begin;                   // the first one's number
  int end;
  std::uint32_t x;  // where the thread's first piece begins in x0

  // Of fields first, first + 2, ..; the last in place of those beyond.
  __device__ void read_ids(int first, ForwardIds& ids) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const char* base = static_cast<const char*>(inputs.ids) + (sample.b << (is_int64 ? 3 : 2));
    const std::int64_t stride = inputs.ids_stride << (is_int64 ? 3 : 2);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const char* id = base + a.ids_rows[min(first + 2 * u, end - 1)] * stride;
      if (is_int64)
        ids[u] = __ldg(reinterpret_cast<const uint2*>(id));
      else
        ids[u].x = __ldg(reinterpret_cast<const unsigned*>(id));
    }
  }

  __device__ bool is_row(const uint2& id, const ForwardField& field) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const std::uint32_t high = is_int64 ? id.y : static_cast<std::uint32_t>(int(id.x) >> 31);
    return high == 0 && id.x < field.rows;
  }

  // Their rows to x0. Returns the thread's share of the wide sum.
  __device__ float gather(int first, const ForwardIds& ids) const {
    uint4 pieces[kInFlight] = {};
    float wides[kInFlight] = {};
    std::uint32_t targets[kInFlight];
    bool any_bad = false;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + 2 * u;
      const ForwardField& field = fields[min(f, end - 1) - begin];
      const std::uint32_t row = ids[u].x;
      const bool present = f < end && sample.in_batch;
      const bool good = present && is_row(ids[u], field);
      const bool has_piece = sample.half < field.pieces;
      const char* place = field.table + std::uint64_t{row} * field.row_bytes + 16 * sample.half;
      if (good && has_piece) pieces[u] = __ldg(reinterpret_cast<const uint4*>(place));
      if (good && field.wide != nullptr && sample.half == u % 2) wides[u] = __ldg(field.wide + row);
      targets[u] = f < end && has_piece ? x + field.place : 0;
      any_bad = any_bad || (present && !good);
    }
    return put(first, pieces, wides, targets, any_bad);
  }

  // What was loaded to x0, where a target is not 0. Returns the sum of the wide parts.
  __device__ float put(int first, const uint4 (&pieces)[kInFlight], const float (&wides)[kInFlight],
                       const std::uint32_t (&targets)[kInFlight], bool any_bad) const {
    float wide = 0.0f;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (targets[u] != 0) store_words(targets[u], pieces[u]);
      wide += wides[u];
    }
    if (any_bad) [[unlikely]]
      wide += replace_bad(first);
    return wide;
  }

  // For those with bad ids, of which nothing is in place yet but zeros: counts them, once a field,
  // and puts the rows of unknown ids where the policy wants them.
  __device__ float replace_bad(int first) const {
    float wide = 0.0f;
#pragma unroll 1
    for (int f = first; f < end && f < first + 2 * kInFlight; f += 2) {
      const ForwardField& field = fields[f - begin];
      const std::int64_t place = a.ids_rows[f] * inputs.ids_stride + sample.b;
      const std::int64_t id = inputs.ids_are_int64 != 0
                                  ? static_cast<const std::int64_t*>(inputs.ids)[place]
                                  : static_cast<const std::int32_t*>(inputs.ids)[place];
      if (id >= 0 && id < field.rows) continue;
      if (field.slot >= 0 && sample.half == 0) {
        unsigned long long* report = inputs.report + a.report;
        atomicAdd(report + field.slot, 1ull);
        atomicMin(report + a.num_slots,
                  static_cast<unsigned long long>(sample.b) * a.num_slots + field.slot);
      }
      if (inputs.use_oov == 0 || field.oov_row < 0) continue;
      const char* row = field.table + field.oov_row * field.row_bytes;
      if (sample.half < field.pieces)
        store_words(x + field.place, __ldg(reinterpret_cast<const uint4*>(row) + sample.half));
      if (field.wide != nullptr && sample.half == 0) wide += __ldg(field.wide + field.oov_row);
    }
    return wide;
  }
};

// The block's half of x0, at `x`; `fields`: shared memory for them. Returns the pair's share of the
// wide sum. Gather: how ids and rows are loaded.
template <class Gather = ForwardGather>
__device__ float gather_half(const BatchMemory& inputs, const ForwardArguments& a, int rank,
                             const ForwardSample& sample, ForwardField* fields, std::uint32_t x) {
  const int begin = rank == 0 ? 0 : a.fields_end[0];
  const Gather own{ForwardGather{inputs, a, sample, fields, begin, a.fields_end[rank],
                                 x + sample.half * kChunkStride + sample.row * 16}};
  const int thread = threadIdx.x;
  const bool has_word = thread < (own.end - begin) * int(sizeof(ForwardField) / 16);
  uint4 word{};
  if (has_word) word = __ldg(reinterpret_cast<const uint4*>(a.fields + begin) + thread);
  float wide = 0.0f;
  bool staged = false;
#pragma unroll 1
  for (int first = begin + thread / 128; first < own.end || !staged; first += 2 * kInFlight) {
    ForwardIds ids;
    own.read_ids(first, ids);
    if (!staged) {
      if (has_word) reinterpret_cast<uint4*>(fields)[thread] = word;
      block_barrier();
      staged = true;
    }
    wide += own.gather(first, ids);
  }
  if (a.zero_chunk[rank] >= 0 && thread < kForwardRows)
    store_words(x + a.zero_chunk[rank] * kChunkStride + thread * 16, {});
  __syncwarp();
  return wide + __shfl_xor_sync(0xffffffffu, wide, 1);
}

template <class T>
__device__ float squares_of(const uint4& words) {
  struct Piece {
    T values[8];
  };
  const auto piece = __builtin_bit_cast(Piece, words);
  float sum = 0.0f;
#pragma unroll
  for (const T value : piece.values) sum = fmaf(to_float(value), to_float(value), sum);
  return sum;
}

// The sum of the squares of a row's numbers in `chunks` chunks from `x` on.
template <class T>
__device__ float sum_of_squares(std::uint32_t x, int chunks) {
  float sum = 0.0f;
#pragma unroll 2
  for (int chunk = 0; chunk < chunks; ++chunk)
    sum += squares_of<T>(load_words(x + chunk * kChunkStride));
  return sum;
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
