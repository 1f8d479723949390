// The first step of every kernel that looks rows up: from ids to rows of their tables, with the
// policy for ids outside their tables and its counters.
//
// Threads take neighbouring samples of a field, so ids are read coalesced along B. A thread's ids
// are all asked for before the first is looked at; nothing waits for the fields' records where the
// fields take their ids in order.
#pragma once

#include "kernels/multi_table_lookup_cuda.h"

namespace dpiframe {

// Whose ids: the fields of one lookup.
struct LookupIds {
  const PackedLookupField* fields;  // [F]
  int num_fields;
  std::int64_t
      first_ids_row;  // field f reads row first_ids_row + f of the ids; -1: its own ids_row
  unsigned long long* report;  // [F + 1], see MultiTableLookupParams
};

// Elements from one sample's rows to the next. It is odd so that neither a warp's writes, one field
// of many samples, nor its reads, many fields of one sample, all meet in the same banks.
__host__ __device__ constexpr int rows_stride(int num_fields) {
  return num_fields | 1;
}

// A thread's share of a tile: every step-th field of one sample, from `first` on.
struct RowsShare {
  std::int64_t b;  // which sample of the batch
  int first;
  int step;
  std::int64_t* rows;  // [F] of the sample
};

// The ids of field f from inputs.ids and `lookup` on, in elements.
__device__ inline std::int64_t place_of_ids(const RunInputs& inputs, const LookupIds& lookup,
                                            int f) {
  if (lookup.first_ids_row < 0) return lookup.fields[f].ids_row * inputs.ids_stride;
  return lookup.first_ids_row * inputs.ids_stride + f * inputs.ids_stride;
}

// Counts the share's bad ids and puts oov rows in their place, where there are any. It reads the
// ids a second time, so that the way of good ids stays short.
template <class Id>
__device__ void replace_bad_ids(const RunInputs& inputs, const LookupIds& lookup,
                                const RowsShare& share) {
  const Id* ids = static_cast<const Id*>(inputs.ids) + share.b;
#pragma unroll 1
  for (int f = share.first; f < lookup.num_fields; f += share.step) {
    const std::int64_t row = ids[place_of_ids(inputs, lookup, f)];
    if (row >= 0 && row < lookup.fields[f].rows) continue;
    atomicAdd(lookup.report + f, 1ull);
    atomicMin(lookup.report + lookup.num_fields,
              static_cast<unsigned long long>(share.b) * lookup.num_fields + f);
    if (inputs.use_oov != 0) share.rows[f] = lookup.fields[f].oov_row;
  }
}

template <class Id>
__device__ void read_rows_of(const RunInputs& inputs, const LookupIds& lookup,
                             const RowsShare& share) {
  constexpr int kInFlight = 3;
  const bool in_batch = share.b < inputs.batch;
  const Id* ids = static_cast<const Id*>(inputs.ids) + share.b;
  bool all_good = true;
#pragma unroll 1
  for (int f0 = share.first; f0 < lookup.num_fields; f0 += kInFlight * share.step) {
    Id id[kInFlight] = {};
    std::uint64_t num_rows[kInFlight] = {};
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = f0 + u * share.step;
      if (f >= lookup.num_fields || !in_batch) continue;
      id[u] = ids[place_of_ids(inputs, lookup, f)];
      num_rows[u] = lookup.fields[f].rows;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = f0 + u * share.step;
      if (f >= lookup.num_fields) continue;
      const std::int64_t row = id[u];
      const bool good = static_cast<std::uint64_t>(row) < num_rows[u];
      all_good &= good;
      share.rows[f] = good ? row : -1;
    }
  }
  if (!all_good && in_batch) [[unlikely]]
    replace_bad_ids<Id>(inputs, lookup, share);
}

// rows[s * rows_stride(F) + f] = the row of field f for sample first_sample + s; -1 where zeros are
// due and past the batch's end. `num_samples` is a power of two and divides `num_threads`, of which
// `thread` does its share; whoever calls synchronises before reading `rows`.
__device__ inline void read_rows(const RunInputs& inputs, const LookupIds& lookup,
                                 std::int64_t first_sample, int num_samples, int thread,
                                 int num_threads, std::int64_t* rows) {
  const int bits = 31 - __clz(num_samples);
  const int sample = thread & (num_samples - 1);
  const RowsShare share{first_sample + sample, thread >> bits, num_threads >> bits,
                        rows + sample * rows_stride(lookup.num_fields)};
  if (inputs.ids_are_int64 != 0)
    read_rows_of<std::int64_t>(inputs, lookup, share);
  else
    read_rows_of<std::int32_t>(inputs, lookup, share);
}

}  // namespace dpiframe
