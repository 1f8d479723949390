// The measured ceiling of a lookup: rows of one flat table, gathered.
//
//   out[i] = table[rows[i]]
//
// Takes row numbers instead of ids: no checks, no sums. Only the benchmark uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dpiframe {

struct PlainGatherParams {
  const void* table;         // [any, row_bytes], 16-byte aligned
  const std::int64_t* rows;  // [num_rows], all inside the table
  std::int64_t num_rows;
  std::int64_t row_bytes;  // a multiple of 16
  void* out;               // [num_rows, row_bytes], 16-byte aligned
};

void plain_gather(const PlainGatherParams& params, cudaStream_t stream);

}  // namespace dpiframe
