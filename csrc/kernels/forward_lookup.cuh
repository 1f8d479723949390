// The lookup of the one-kernel forward pass: a block gathers its half of the fields for the
// cluster's 64 rows straight into shared memory.
//
// Two threads share a row of a table, 16 bytes each; a warp has 16 samples of one field at a time,
// so ids are read coalesced; eight warps are four groups of 16 samples for every other field.
// kInFlight rows a thread are on their way together.
#pragma once

#include "common/numbers.cuh"
#include "kernels/forward_cluster.cuh"
#include "kernels/forward_layout.h"
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

template <class Id>
__device__ void read_ids(const RunInputs& inputs, const ForwardArguments& a,
                         const ForwardSample& sample, int first, int end,
                         std::int64_t (&ids)[kInFlight]) {
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int f = first + 2 * u;
    ids[u] = -1;
    if (f < end && sample.in_batch)
      ids[u] =
          static_cast<const Id*>(inputs.ids)[a.fields[f].ids_row * inputs.ids_stride + sample.b];
  }
}

// The row that an id outside its table takes: -1 where zeros are due. Counted once a field.
__device__ inline std::int64_t replace_bad_id(const RunInputs& inputs, const ForwardArguments& a,
                                              const ForwardField& field,
                                              const ForwardSample& sample) {
  if (!sample.in_batch) return -1;
  if (field.slot >= 0 && sample.half == 0) {
    unsigned long long* report = inputs.report + a.report;
    atomicAdd(report + field.slot, 1ull);
    atomicMin(report + a.num_slots,
              static_cast<unsigned long long>(sample.b) * a.num_slots + field.slot);
  }
  return inputs.use_oov != 0 ? field.oov_row : -1;
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

// Gathers fields first, first + 2, .. of the thread's sample, kInFlight of them. Returns the
// thread's share of wide - 1/2 sum of FM's squares.
template <class T>
__device__ float gather_some(const RunInputs& inputs, const ForwardArguments& a,
                             const ForwardSample& sample, int first, int end,
                             std::uint32_t target) {
  std::int64_t rows[kInFlight];
  if (inputs.ids_are_int64 != 0)
    read_ids<std::int64_t>(inputs, a, sample, first, end, rows);
  else
    read_ids<std::int32_t>(inputs, a, sample, first, end, rows);
  uint4 pieces[kInFlight];
  float wides[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int f = first + 2 * u;
    pieces[u] = {};
    wides[u] = 0.0f;
    if (f >= end) continue;
    const ForwardField& field = a.fields[f];
    std::int64_t row = rows[u];
    if (static_cast<std::uint64_t>(row) >= static_cast<std::uint64_t>(field.rows)) [[unlikely]]
      row = replace_bad_id(inputs, a, field, sample);
    if (row < 0) continue;
    const char* place = field.table + static_cast<std::uint64_t>(row) * field.row_bytes;
    if (sample.half < field.pieces)
      pieces[u] = __ldg(reinterpret_cast<const uint4*>(place) + sample.half);
    if (field.wide != nullptr && sample.half == u % 2) wides[u] = __ldg(field.wide + row);
  }
  float side = 0.0f;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int f = first + 2 * u;
    if (f >= end) continue;
    const ForwardField& field = a.fields[f];
    if (sample.half < field.pieces)
      store_words(target + (field.chunk + sample.half) * kChunkStride + sample.row * 16, pieces[u]);
    if (field.in_fm != 0) side = fmaf(-0.5f, squares_of<T>(pieces[u]), side);
    side += wides[u];
  }
  return side;
}

// The block's half of x0, at `target`; among the first 256 threads. Returns the pair's share.
template <class T>
__device__ float gather_half(const RunInputs& inputs, const ForwardArguments& a, int rank,
                             const ForwardSample& sample, std::uint32_t target) {
  float side = 0.0f;
  const int end = a.fields_end[rank];
  int first = (rank == 0 ? 0 : a.fields_end[0]) + static_cast<int>(threadIdx.x) / 128;
  for (; first < end; first += 2 * kInFlight)
    side += gather_some<T>(inputs, a, sample, first, end, target);
  if (a.zero_chunk[rank] >= 0 && threadIdx.x < kForwardRows)
    store_words(target + a.zero_chunk[rank] * kChunkStride + threadIdx.x * 16, {});
  __syncwarp();
  return side + __shfl_xor_sync(0xffffffffu, side, 1);
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
