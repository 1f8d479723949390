// Decompresses pages on the GPU, a warp a page.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "parquet/stored_page.h"

namespace dpiframe {

// All on the device.
struct UnpackParams {
  const parquet::StoredPage* pages;  // of the unit
  const std::int32_t* order;         // [num_packed] those that are compressed, the longest first
  std::int32_t num_packed;
  const std::uint8_t* packed;  // the unit's stored bytes
  std::uint8_t* unpacked;      // takes the pages, each where it says
  std::uint8_t* literals;      // as large, to work in
  unsigned* next;              // 0: how many of `order` are taken
  unsigned* failed;            // becomes 1 where a page is not what it should be
};

void unpack_pages(const UnpackParams& params, cudaStream_t stream);

}  // namespace dpiframe
