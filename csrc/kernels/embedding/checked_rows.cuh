// The first step of every kernel that looks up embedding rows: from ids to rows of their tables,
// with the policy for ids outside their tables and its counters.
//
// Threads take neighbouring samples of a field, so ids are read coalesced along B. A thread issues
// the loads of several ids before it uses the first; where the fields take their ids in order,
// these do not wait for the fields' records. The path of good ids is short, because at a few
// thousand samples instructions bound a lookup, not bytes.
#pragma once

#include <type_traits>

#include "kernels/embedding/multi_table_lookup_cuda.h"

namespace dpiframe {

// The fields of one lookup, and where their ids are.
struct LookupIds {
  const PackedLookupField* fields;  // [F]
  int num_fields;
  std::int64_t
      first_ids_row;  // field f reads row first_ids_row + f of the ids; -1: its own ids_row
  unsigned long long* report;  // [F + 1], see MultiTableLookupParams
};

// A thread's share of a tile: every step-th field of one sample, from `first` on.
struct RowsShare {
  std::int64_t b;  // which sample of the batch
  bool in_batch;
  int first;
  int step;
};

// *pointer by one access of Access's width; the compiler would load the members one by one.
template <class Access, class T>
__device__ T load_whole(const T* pointer) {
  static_assert(sizeof(Access) == sizeof(T));
  return __builtin_bit_cast(T, *reinterpret_cast<const Access*>(pointer));
}

__device__ inline LookupTable load_table(const PackedLookupField& field) {
  struct Halves {
    int4 halves[2];
  };
  return load_whole<Halves>(&field.table);
}

// Any ids, counting bad ones. For ids that do not lie in the order of the fields; and for the bad
// ones alone (`only_bad`) of a share that has some, which keeps the path of good ids short.
template <class Store>
__device__ void read_any_rows(const BatchMemory& inputs, const LookupIds& lookup,
                              const RowsShare& share, bool only_bad, const Store& store) {
#pragma unroll 1
  for (int f = share.first; f < lookup.num_fields; f += share.step) {
    const PackedLookupField& field = lookup.fields[f];
    const std::int64_t index = field.ids_row * inputs.ids_stride + share.b;
    std::int64_t row = -1;
    if (share.in_batch) {
      row = inputs.ids_are_int64 != 0 ? static_cast<const std::int64_t*>(inputs.ids)[index]
                                      : static_cast<const std::int32_t*>(inputs.ids)[index];
      const bool good = row >= 0 && row < field.table.rows;
      if (good && only_bad) continue;
      if (!good) {
        atomicAdd(lookup.report + f, 1ull);
        atomicMin(lookup.report + lookup.num_fields,
                  static_cast<unsigned long long>(share.b) * lookup.num_fields + f);
        row = inputs.use_oov != 0 ? field.oov_row : -1;
      }
    }
    if (row >= 0)
      store.found(f, static_cast<std::uint64_t>(row), field.table);
    else
      store.missing(f);
  }
}

__device__ inline bool is_row(std::int32_t id, const LookupTable& table) {
  return static_cast<std::uint32_t>(id) < table.rows_of_int32;
}
__device__ inline bool is_row(std::int64_t id, const LookupTable& table) {
  return static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(table.rows);
}

// Ids in the order of the fields. Returns whether all were good; skips bad ones.
template <class Id, class Store>
__device__ bool read_good_rows(const BatchMemory& inputs, const LookupIds& lookup,
                               const RowsShare& share, const Store& store) {
  constexpr int kInFlight = 3;
  const std::int64_t step = share.step * inputs.ids_stride;
  const Id* ids = static_cast<const Id*>(inputs.ids) + share.b +
                  (lookup.first_ids_row + share.first) * inputs.ids_stride;
  unsigned all_good = 1;
#pragma unroll 1
  for (int f0 = share.first; f0 < lookup.num_fields; f0 += kInFlight * share.step) {
    Id id[kInFlight];
    LookupTable tables[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = f0 + u * share.step;
      id[u] = -1;
      if (f >= lookup.num_fields) continue;
      if (share.in_batch) id[u] = *ids;
      ids += step;
      tables[u] = load_table(lookup.fields[f]);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = f0 + u * share.step;
      if (f >= lookup.num_fields) continue;
      const bool good = is_row(id[u], tables[u]);
      if (good) store.found(f, static_cast<std::make_unsigned_t<Id>>(id[u]), tables[u]);
      all_good &= static_cast<unsigned>(good);
    }
  }
  return all_good != 0;
}

// For each field f of the thread's share calls store.found(f, row, table), row being unsigned, or
// store.missing(f), which stands for zeros: for a bad id, and past the batch's end.
template <class Store>
__device__ void for_each_row(const BatchMemory& inputs, const LookupIds& lookup,
                             const RowsShare& share, const Store& store) {
  const bool in_order = lookup.first_ids_row >= 0;
  bool done = false;
  if (in_order && inputs.ids_are_int64 != 0)
    done = read_good_rows<std::int64_t>(inputs, lookup, share, store);
  else if (in_order)
    done = read_good_rows<std::int32_t>(inputs, lookup, share, store);
  if (!done) [[unlikely]]
    read_any_rows(inputs, lookup, share, in_order, store);
}

// Elements from one sample's rows to the next: odd, so that neither a warp's writes (one field of
// many samples) nor its reads (many fields of one sample) have shared-memory bank conflicts.
__host__ __device__ constexpr int rows_stride(int num_fields) {
  return num_fields | 1;
}

struct RowStore {
  std::int64_t* rows;  // [F] of a sample
  template <class Row>
  __device__ void found(int f, Row row, const LookupTable&) const {
    rows[f] = static_cast<std::int64_t>(row);
  }
  __device__ void missing(int f) const { rows[f] = -1; }
};

// rows[s * rows_stride(F) + f] = the row of field f for sample first_sample + s, -1 for zeros.
// `num_samples` divides `num_threads`, of which `thread` does its share; the caller synchronises
// before it reads `rows`.
__device__ inline void read_rows(const BatchMemory& inputs, const LookupIds& lookup,
                                 std::int64_t first_sample, unsigned num_samples, unsigned thread,
                                 unsigned num_threads, std::int64_t* rows) {
  const unsigned sample = thread % num_samples;
  const std::int64_t b = first_sample + sample;
  const RowsShare share{b, b < inputs.batch, static_cast<int>(thread / num_samples),
                        static_cast<int>(num_threads / num_samples)};
  for_each_row(inputs, lookup, share, RowStore{rows + sample * rows_stride(lookup.num_fields)});
}

}  // namespace dpiframe
