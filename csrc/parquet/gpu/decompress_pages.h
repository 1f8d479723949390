// Decompresses pages on the GPU, a warp a page.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "parquet/page.h"

namespace dpiframe {

// All on the device.
struct DecompressParams {
  const parquet::Page* pages;  // of the unit
  const std::int32_t* order;   // [num_compressed] those of the codec, the longest first
  std::int32_t num_compressed;
  const std::uint8_t* compressed;  // the unit's column chunks
  std::uint8_t* uncompressed;      // written: each page at its offset
  std::uint8_t* literals;          // as large as `uncompressed`; scratch of zstd
  unsigned* next;                  // how many of `order` are taken; 0 at the start
  unsigned* failed;                // where 0, set to pages::refused_page if one is corrupt
};

// Of one of kGpuCodecs.
void decompress_pages(Codec codec, const DecompressParams& params, cudaStream_t stream);

}  // namespace dpiframe
