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

// What stands in for an id outside its table: the oov row, or -1 for zeros. Counts it.
__device__ inline std::int64_t replace_bad_id(const RunInputs& inputs, const LookupIds& lookup,
                                              int f, std::int64_t b) {
  atomicAdd(lookup.report + f, 1ull);
  atomicMin(lookup.report + lookup.num_fields,
            static_cast<unsigned long long>(b) * lookup.num_fields + f);
  return inputs.use_oov != 0 ? lookup.fields[f].oov_row : -1;
}

template <class Id>
__device__ inline void read_rows_of(const RunInputs& inputs, const LookupIds& lookup,
                                    std::int64_t first_sample, int num_samples, int thread,
                                    int num_threads, std::int64_t* rows) {
  constexpr int kInFlight = 5;
  const int bits = __ffs(num_samples) - 1;
  const int num_ids = lookup.num_fields << bits;
  const int stride = rows_stride(lookup.num_fields);
  for (int first = thread; first < num_ids; first += kInFlight * num_threads) {
    Id ids[kInFlight] = {};
    std::int64_t ends[kInFlight];  // -1: no such sample
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int i = first + u * num_threads;
      const int f = i >> bits;
      const std::int64_t b = first_sample + (i & (num_samples - 1));
      ends[u] = -1;
      if (i >= num_ids || b >= inputs.batch) continue;
      const PackedLookupField& field = lookup.fields[f];
      const std::int64_t ids_row =
          lookup.first_ids_row >= 0 ? lookup.first_ids_row + f : field.ids_row;
      ids[u] = static_cast<const Id*>(inputs.ids)[ids_row * inputs.ids_stride + b];
      ends[u] = field.rows;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int i = first + u * num_threads;
      if (i >= num_ids) break;
      const int f = i >> bits;
      const int sample = i & (num_samples - 1);
      std::int64_t row = ends[u] < 0 ? -1 : ids[u];
      if (ends[u] >= 0 && (row < 0 || row >= ends[u])) [[unlikely]]
        row = replace_bad_id(inputs, lookup, f, first_sample + sample);
      rows[sample * stride + f] = row;
    }
  }
}

// rows[s * rows_stride(F) + f] = the row of field f for sample first_sample + s; -1 where zeros are
// due and past the batch's end. `num_samples` is a power of two. `thread` of `num_threads` does its
// share; whoever calls synchronises before reading `rows`.
__device__ inline void read_rows(const RunInputs& inputs, const LookupIds& lookup,
                                 std::int64_t first_sample, int num_samples, int thread,
                                 int num_threads, std::int64_t* rows) {
  if (inputs.ids_are_int64 != 0)
    read_rows_of<std::int64_t>(inputs, lookup, first_sample, num_samples, thread, num_threads,
                               rows);
  else
    read_rows_of<std::int32_t>(inputs, lookup, first_sample, num_samples, thread, num_threads,
                               rows);
}

}  // namespace dpiframe
