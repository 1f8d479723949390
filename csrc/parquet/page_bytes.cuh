// Bytes of a page, read by a warp of a GPU or by the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "parquet/page.h"

namespace dpiframe::pages {

// Whether a page is in an encoding that few writers use. A GPU decodes those by a kernel of their
// own: the other one has fewer registers without them.
DPIF_HOST_DEVICE bool is_rare(parquet::PageKind kind) {
  return kind == parquet::PageKind::kDelta || kind == parquet::PageKind::kSplit;
}

// Whether a page is of a raw column.
DPIF_HOST_DEVICE bool is_raw(parquet::PageKind kind) {
  return kind == parquet::PageKind::kCodes || kind == parquet::PageKind::kTexts;
}

// Bytes that need not be aligned. Lanes load the aligned words of 4 bytes that hold any of them.
struct PageBytes {
  const std::uint8_t* begin;
  std::int32_t size;
};

DPIF_HOST_DEVICE int misalignment(const std::uint8_t* at) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % 4);
}

// A number at its alignment.
template <class Number>
DPIF_HOST_DEVICE Number load(const std::uint8_t* at) {
#ifdef __CUDA_ARCH__
  return __ldg(reinterpret_cast<const Number*>(at));
#else
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
#endif
}

// The 32 bits that lie `shift` bits behind the begin of `low`, 0 to 31.
DPIF_HOST_DEVICE std::uint32_t shifted(std::uint32_t low, std::uint32_t high, std::uint32_t shift) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, shift);
#else
  return static_cast<std::uint32_t>((std::uint64_t{high} << 32 | low) >> shift);
#endif
}

// A number of `width` ones, 0 to 32.
DPIF_HOST_DEVICE std::uint32_t ones(std::uint32_t width) {
#ifdef __CUDA_ARCH__
  return __funnelshift_lc(0xffffffffu, 0, width);
#else
  return static_cast<std::uint32_t>((std::uint64_t{0xffffffffu} << width) >> 32);
#endif
}

DPIF_HOST_DEVICE int popcount(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

// The `width` bits from `bit` on, counted from an aligned word; 0 to 32. Without branches, so that
// several loads are under way at a time.
DPIF_HOST_DEVICE std::uint32_t bits_at(const std::uint8_t* words, std::uint32_t bit,
                                       std::uint32_t width) {
  // The word of the last bit is the first one or the next.
  const std::uint32_t last = bit + width - (width != 0);
  const auto low = load<std::uint32_t>(words + bit / 32 * 4);
  const auto high = load<std::uint32_t>(words + last / 32 * 4);
  return shifted(low, high, bit % 32) & ones(width);
}

}  // namespace dpiframe::pages
