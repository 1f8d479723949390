// The lookup of the one-kernel forward pass: a block gathers its half of the fields for the
// cluster's 64 rows straight into shared memory.
//
// Two threads share a row of a table, 16 bytes each; a warp has 16 samples of one field at a time,
// so ids are read coalesced; eight warps are four groups of 16 samples for every other field.
// kInFlight rows a thread are on their way together, their ids are asked for before anything else.
// The way of good ids is short, as in lookup_rows.cuh; bad ones are gone over again.
#pragma once

#include "common/numbers.cuh"
#include "kernels/forward_products.cuh"
#include "kernels/run_inputs.h"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kInFlight = 10;

// A thread's sample. Eight neighbouring threads have even or odd rows alone, whose 16 bytes and
// those of the next chunk are all in different banks.
struct ForwardSample {
  int row;  // of the cluster
  int half;
  std::int64_t b;
  bool in_batch;

  __device__ ForwardSample(std::int64_t first_row, std::int64_t batch) {
    const int pair = threadIdx.x % 32 / 2;
    row = threadIdx.x / 32 % 4 * 16 + (pair & 8) + (pair & 3) * 2 + (pair >> 2 & 1);
    half = threadIdx.x & 1;
    b = first_row + row;
    in_batch = b < batch;
  }
};

// Ids as they were read: 8 bytes, or the lower 4.
using ForwardIds = uint2[kInFlight];

__device__ inline void read_ids(const RunInputs& inputs, const ForwardArguments& a,
                                const ForwardSample& sample, int first, int end, ForwardIds& ids) {
  const int size = inputs.ids_are_int64 != 0 ? 8 : 4;
  const char* base = static_cast<const char*>(inputs.ids) + sample.b * size;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int f = first + 2 * u;
    ids[u] = {~0u, ~0u};
    if (f >= end || !sample.in_batch) continue;
    const char* id = base + a.ids_rows[f] * inputs.ids_stride * size;
    if (size == 8)
      ids[u] = __ldg(reinterpret_cast<const uint2*>(id));
    else
      ids[u].x = __ldg(reinterpret_cast<const unsigned*>(id));
  }
}

__device__ inline std::int64_t row_of(const RunInputs& inputs, const uint2& id) {
  if (inputs.ids_are_int64 == 0) return static_cast<std::int32_t>(id.x);
  return static_cast<std::int64_t>(std::uint64_t{id.y} << 32 | id.x);
}

// From the block's shared memory.
__device__ inline ForwardField load_field(const ForwardPlaces& places, int f) {
  struct Words {
    uint4 words[sizeof(ForwardField) / 16];
  } field;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(field) / 16); ++i)
    field.words[i] = load_words(places.base + places.offsets.fields + f * sizeof(field) + 16 * i);
  return __builtin_bit_cast(ForwardField, field);
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

// One field of the thread's sample: its 16 bytes of the row and the wide weight, where they are
// its.
struct ForwardPiece {
  uint4 words = {};
  float wide = 0.0f;

  __device__ void load(const ForwardField& field, std::int64_t row, int half, bool takes_wide) {
    const char* place = field.table + static_cast<std::uint64_t>(row) * field.row_bytes;
    if (half < field.pieces) words = __ldg(reinterpret_cast<const uint4*>(place) + half);
    if (takes_wide && field.wide != nullptr) wide = __ldg(field.wide + row);
  }
  // Returns wide - 1/2 sum of FM's squares.
  template <class T>
  __device__ float store(const ForwardField& field, const ForwardSample& sample,
                         std::uint32_t x) const {
    if (sample.half < field.pieces)
      store_words(x + (field.chunk + sample.half) * kChunkStride + sample.row * 16, words);
    return field.in_fm != 0 ? fmaf(-0.5f, squares_of<T>(words), wide) : wide;
  }
};

// Fields of the block, among the first 256 threads.
template <class T>
struct ForwardGather {
  const RunInputs& inputs;
  const ForwardArguments& a;
  const ForwardPlaces& places;
  const ForwardSample& sample;
  int begin;  // the block's first field
  int end;

  // Fields first, first + 2, .. of the thread's sample, kInFlight of them. Returns its share of
  // wide - 1/2 sum of FM's squares.
  __device__ float some(int first, const ForwardIds& ids) const {
    ForwardPiece pieces[kInFlight];
    bool all_good = true;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + 2 * u;
      if (f >= end) continue;
      const ForwardField field = load_field(places, f - begin);
      const std::int64_t row = row_of(inputs, ids[u]);
      const bool good = static_cast<std::uint64_t>(row) < static_cast<std::uint64_t>(field.rows);
      if (good) pieces[u].load(field, row, sample.half, sample.half == u % 2);
      all_good = all_good && good;
    }
    float side = 0.0f;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + 2 * u;
      if (f >= end) continue;
      side += pieces[u].template store<T>(load_field(places, f - begin), sample, places.base);
    }
    if (!all_good && sample.in_batch) [[unlikely]]
      side += replace_bad(first);
    return side;
  }

  // The same for those with bad ids, of which nothing is in place yet but zeros: counts them, once
  // a field, and puts the rows of unknown ids where the policy wants them.
  __device__ float replace_bad(int first) const {
    float side = 0.0f;
#pragma unroll 1
    for (int f = first; f < end && f < first + 2 * kInFlight; f += 2) {
      const ForwardField field = load_field(places, f - begin);
      const std::int64_t place = a.ids_rows[f] * inputs.ids_stride + sample.b;
      const std::int64_t row = inputs.ids_are_int64 != 0
                                   ? static_cast<const std::int64_t*>(inputs.ids)[place]
                                   : static_cast<const std::int32_t*>(inputs.ids)[place];
      if (row >= 0 && row < field.rows) continue;
      if (field.slot >= 0 && sample.half == 0) {
        unsigned long long* report = inputs.report + a.report;
        atomicAdd(report + field.slot, 1ull);
        atomicMin(report + a.num_slots,
                  static_cast<unsigned long long>(sample.b) * a.num_slots + field.slot);
      }
      if (inputs.use_oov == 0 || field.oov_row < 0) continue;
      ForwardPiece piece;
      piece.load(field, field.oov_row, sample.half, sample.half == 0);
      side += piece.template store<T>(field, sample, places.base);
    }
    return side;
  }
};

// The block's half of x0. Returns the pair's share of wide - 1/2 sum of FM's squares.
template <class T>
__device__ float gather_half(const RunInputs& inputs, const ForwardArguments& a, int rank,
                             const ForwardSample& sample, const ForwardPlaces& places) {
  const int begin = rank == 0 ? 0 : a.fields_end[0];
  const ForwardGather<T> gather{inputs, a, places, sample, begin, a.fields_end[rank]};
  constexpr int kWords = sizeof(ForwardField) / 16;
  const int thread = threadIdx.x;
  const bool has_word = thread < (gather.end - begin) * kWords;
  uint4 word{};
  if (has_word) word = __ldg(reinterpret_cast<const uint4*>(a.fields + begin) + thread);
  int first = begin + thread / 128;
  ForwardIds ids;
  read_ids(inputs, a, sample, first, gather.end, ids);
  if (has_word) store_words(places.base + places.offsets.fields + 16 * thread, word);
  block_barrier();
  float side = gather.some(first, ids);
#pragma unroll 1
  for (first += 2 * kInFlight; first < gather.end; first += 2 * kInFlight) {
    read_ids(inputs, a, sample, first, gather.end, ids);
    side += gather.some(first, ids);
  }
  if (a.zero_chunk[rank] >= 0 && thread < kForwardRows)
    store_words(places.base + a.zero_chunk[rank] * kChunkStride + thread * 16, {});
  __syncwarp();
  return side + __shfl_xor_sync(0xffffffffu, side, 1);
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
