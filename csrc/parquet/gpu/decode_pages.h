// Values of unpacked pages to a matrix of numbers on the GPU, a warp a page.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "parquet/stored_page.h"

namespace dpiframe {

// All on the device.
struct DecodeParams {
  const parquet::StoredPage* pages;
  std::int32_t num_pages;
  const std::uint8_t* packed;    // the unit's stored bytes
  const std::uint8_t* unpacked;  // its compressed pages, unpacked
  void* out;                     // [columns, rows] of number_bytes each
  std::int64_t rows;
  int number_bytes;  // 4 or 8
  unsigned* failed;  // becomes 1 where a page is not what it should be, or holds nulls
};

// After `unpack_pages`. Writes nothing outside `out`, whatever the pages hold.
void decode_pages(const DecodeParams& params, cudaStream_t stream);

}  // namespace dpiframe
