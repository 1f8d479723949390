// A stored page to its unpacked bytes.
#pragma once

#include "codec/zstd/frame.h"
#include "parquet/stored_page.h"

namespace dpiframe {

// `literals` is as large as `unpacked`. False: the page is not what it should be.
DPIF_HOST_DEVICE bool unpack_page(const parquet::StoredPage& page, const std::uint8_t* packed,
                                 std::uint8_t* unpacked, std::uint8_t* literals, zstd::Work& work) {
  return zstd::decode_frame({packed + page.packed_at, page.packed_bytes},
                            unpacked + page.unpacked_at, page.unpacked_bytes,
                            literals + page.unpacked_at, work);
}

}  // namespace dpiframe
