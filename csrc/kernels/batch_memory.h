// What differs from one batch to the next: the memory of its ids, dense features and scores, and
// its size.
//
// Replaying a captured graph over other memory changes this one argument of the few kernels that
// touch the caller's memory. Those kernels take exactly two arguments, a BatchMemory and their own
// parameters. Changing an argument takes the host a microsecond a kernel, so the first lookup
// copies it to the program's own memory, where the head, which comes after all others, reads it. A
// kernel may be launched for more rows than the batch has; it leaves the caller's rows from `batch`
// on alone.
#pragma once

#include <cstdint>

#include "cuda/completion_flag.h"

namespace dpiframe {

struct BatchMemory {
  const void* ids;          // [F, B] int32 or int64
  std::int64_t ids_stride;  // ids from one field to the next
  const float* dense;       // [N, B]
  std::int64_t dense_stride;
  std::int64_t batch;               // B
  float* scores;                    // [B] or null
  float* logits;                    // [B] or null
  unsigned long long* report;       // bad-id counters of every lookup, one after the other
  unsigned long long* report_copy;  // where the last step copies them to, or null
  std::int64_t ids_are_int64;       // 0 or 1; 8 bytes, so that this struct has no padding
  std::int64_t use_oov;
  // The ids as they came, where those of some field repeat: `ids` are rows then, which the batch's
  // first kernel makes of them (rows_of_ids_cuda.h).
  const void* given_ids;
  std::int64_t given_stride;
  std::int64_t given_are_int64;
  CompletionFlag completion;  // set by the last step after scores and counters are written

  bool operator==(const BatchMemory&) const = default;
};

}  // namespace dpiframe
