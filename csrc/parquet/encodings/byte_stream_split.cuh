// BYTE_STREAM_SPLIT (parquet-format, Encodings.md): the first bytes of all values, then the second
// bytes of all, and so on.
#pragma once

#include "parquet/page_bytes.cuh"

namespace dpiframe::pages {

// Writes the first `count` values; false where there are fewer, or they are cut off.
template <class Number>
DPIF_HOST_DEVICE bool decode_split(PageBytes bytes, std::int32_t count, Number* out) {
  constexpr int kBytes = sizeof(Number);
  const std::int32_t stride = bytes.size / kBytes;
  if (bytes.size % kBytes != 0 || count > stride) return false;
  for (std::int32_t i = lanes::index(); i < count; i += lanes::kCount) {
    std::uint64_t value = 0;
    DPIF_UNROLL
    for (int b = 0; b < kBytes; ++b) value |= std::uint64_t{bytes.begin[b * stride + i]} << (8 * b);
    out[i] = static_cast<Number>(value);
  }
  return true;
}

}  // namespace dpiframe::pages
