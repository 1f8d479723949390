// What one batch brings: the memory of its ids, dense features and scores, and its size.
//
// A captured graph is replayed over other memory by changing this one argument of the few kernels
// that touch the caller's memory. Those kernels take exactly two arguments, a RunInputs and their
// own parameters. They may run for more rows than the batch has; rows from `batch` on are left
// alone.
#pragma once

#include <cstdint>

#include "cuda/completion_flag.h"

namespace dpiframe {

struct RunInputs {
  const void* ids;          // [F, B] int32 or int64
  std::int64_t ids_stride;  // ids from one field to the next
  const float* dense;       // [N, B]
  std::int64_t dense_stride;
  std::int64_t batch;               // B
  float* scores;                    // [B] or null
  float* logits;                    // [B] or null
  unsigned long long* report;       // counters of every lookup, one after the other
  unsigned long long* report_copy;  // where the last step copies them to, or null
  std::int64_t ids_are_int64;       // 0 or 1; 8 bytes, so that no padding hides in this struct
  std::int64_t use_oov;
  KernelEnd end;  // told by the last step when scores and counters are written

  bool operator==(const RunInputs&) const = default;
};

}  // namespace dpiframe
