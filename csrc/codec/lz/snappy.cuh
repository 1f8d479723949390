// Snappy's raw format: google/snappy, format_description.txt, from which it was written. A page is
// its size, then elements: literals, or a copy of up to 64 bytes.
#pragma once

#include "codec/lz/sequences.cuh"

namespace dpiframe::lz {

struct Snappy {
  DPIF_HOST_DEVICE static Parsed parse(const Compressed& in, int at, bool) {
    const std::uint32_t tag = in.byte(at);
    const auto code = static_cast<int>(tag >> 2);
    const int kind = static_cast<int>(tag & 3);
    if (kind == 0) {
      const int size_bytes = code < 60 ? 0 : code - 59;
      const int head = 1 + size_bytes;
      const std::uint32_t more = size_bytes == 0 ? code : in.number(at + 1, size_bytes);
      if (at + head >= in.size || more >= static_cast<std::uint32_t>(in.size - at - head))
        return {};
      const int literals = static_cast<int>(more) + 1;
      return {{literals, at + head, 0, 0}, head + literals};
    }
    const int offset_bytes = kind == 3 ? 4 : kind;
    if (at + 1 + offset_bytes > in.size) return {};
    std::uint32_t offset = in.number(at + 1, offset_bytes);
    if (offset > kMaxBytes) offset = 0;  // refused
    if (kind != 1) return {{0, at, 1 + code, static_cast<int>(offset)}, 1 + offset_bytes};
    return {{0, at, 4 + (code & 7), static_cast<int>(tag >> 5 << 8 | offset)}, 2};
  }

  DPIF_HOST_DEVICE static bool fits(const Parsed&, int, int) { return true; }
};

// Fills out[0, size) from a page; false: it does not give exactly that, and `out` holds anything.
DPIF_HOST_DEVICE bool decode_snappy(const Compressed& in, std::uint8_t* out, int size,
                                    BatchBytes& workspace) {
  int at = 0;
  std::uint64_t stated = 0;
  for (int shift = 0;; shift += 7) {
    if (at >= in.size || shift > 28) return false;
    const std::uint32_t next = in.byte(at++);
    stated |= std::uint64_t{next & 0x7f} << shift;
    if (next < 0x80) break;
  }
  return stated == static_cast<std::uint64_t>(size) && decode<Snappy>(in, at, out, size, workspace);
}

}  // namespace dpiframe::lz
