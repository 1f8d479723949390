// Decodes decompressed pages to a matrix of numbers on the GPU, a warp a page.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "parquet/page.h"

namespace dpiframe {

// All on the device.
struct DecodeParams {
  const parquet::Page* pages;
  std::int32_t num_pages;
  std::int32_t num_rare;             // of them: pages::is_rare
  std::int32_t num_raw;              // pages::is_raw; only of 4 bytes
  const std::uint8_t* compressed;    // the unit's column chunks
  const std::uint8_t* uncompressed;  // its decompressed pages
  void* out;                         // [columns, rows] of number_bytes each
  std::int64_t rows;
  int number_bytes;  // 4 or 8
  unsigned* failed;  // where 0, set to pages::refused_page if one is corrupt or holds nulls
};

// After `decompress_pages`. Writes nothing outside `out`, whatever the pages hold.
void decode_pages(const DecodeParams& params, cudaStream_t stream);

}  // namespace dpiframe
