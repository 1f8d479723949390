// Embedding lookup for all tables of a batch in one call, with FM and the wide sum in the same
// pass.
//
//   out[b, column_f : column_f + dim_f] = table_f[id_f[b]]
//   fm[b]   = 1/2 sum_d ((sum_f v_f[d])^2 - sum_f v_f[d]^2)     f over the in_fm fields
//   wide[b] = sum_f wide_f[id_f[b]]                             f over the fields with wide weights
//
// An id outside [0, rows_f) is never read: it gets the field's oov row where the call allows that
// and the field has one, else zeros. It is counted either way.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/thread_team.h"
#include "kernels/embedding/gather_rows_cpu.h"

namespace dpiframe {

// One field and where its embedding rows go. The caller owns the memory.
struct LookupField {
  const float* table;       // [rows, dim]
  const float* wide;        // [rows] or null
  std::int64_t rows;        // > 0
  std::int64_t dim;         // in [1, 4096]
  std::int64_t out_column;  // first of its dim columns in out
  std::int64_t oov_row;     // stands in for ids outside the table; -1: none
  bool in_fm;
};

// ids of one field, one a sample, int32 or int64, stride in bytes.
struct IdColumn {
  const void* data;
  std::int64_t stride;
  bool is_int64;
};

struct LookupBatch {
  std::int64_t size;              // B
  std::span<const IdColumn> ids;  // [F]
  float* out;                     // [B, W]
  std::int64_t out_stride;        // floats from one sample to the next, >= W
  std::int64_t out_width;         // W
  float* fm;                      // [B] or null
  float* wide;                    // [B] or null
  bool use_oov;
};

struct LookupReport {
  std::vector<std::int64_t> bad_counts;  // [F]
  std::int64_t first_row = -1;  // the smallest (row, field) with a bad id; -1: there is none
  std::int64_t first_field = -1;
  std::int64_t first_value = -1;
};

class MultiTableLookup {
 public:
  // num_threads 0: one a usable processor. std::invalid_argument where fields are inconsistent.
  MultiTableLookup(std::vector<LookupField> fields, int num_threads);
  ~MultiTableLookup();

  // The result does not depend on the number of threads. Calls from several threads take turns.
  LookupReport run(const LookupBatch& batch);

  std::span<const LookupField> fields() const { return fields_; }
  int num_threads() const { return team_.num_threads(); }

 private:
  // Fields of equal dim that are all in FM or all not: one compiled loop serves them.
  struct Group {
    int first;  // into order_
    int count;
    std::int64_t dim;
    bool in_fm;
    GatherRows gather;
  };
  struct Worker;

  void check(const LookupBatch& batch) const;
  void run_samples(const LookupBatch& batch, std::int64_t begin, std::int64_t end, Worker& worker);
  void resolve(const LookupBatch& batch, std::int64_t begin, int slot, int first, int last,
               Worker& worker) const;
  void gather(const LookupBatch& batch, std::int64_t sample, int slot, int lane,
              Worker& worker) const;
  void sum_wide(const LookupBatch& batch, std::int64_t begin, std::int64_t end, int slot,
                Worker& worker) const;

  std::vector<LookupField> fields_;
  std::vector<int> order_;             // positions in the gather order -> field
  std::vector<std::int64_t> columns_;  // [F] out_column in gather order
  std::vector<Group> groups_;
  std::vector<int> wide_slot_;  // [F] in gather order: index among the wide fields, -1: none
  int num_wide_ = 0;
  std::vector<float> zeros_;  // the row read in place of a bad id's
  ThreadTeam team_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex turn_;
};

}  // namespace dpiframe
