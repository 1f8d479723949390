// DELTA_BINARY_PACKED (parquet-format, Encodings.md): blocks of differences, less the least of
// them, in miniblocks of one bit width each. The lanes of a warp sum a miniblock together.
#pragma once

#include "parquet/page_bytes.cuh"

namespace dpiframe::pages {

// Numbers of 7 bits a byte, read by all lanes alike.
struct VarintReader {
  const std::uint8_t* at;
  std::int32_t left;

  DPIF_HOST_DEVICE bool skip(std::int32_t bytes) {
    if (bytes > left) return false;
    at += bytes;
    left -= bytes;
    return true;
  }

  DPIF_HOST_DEVICE bool read(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && left > 0; shift += 7) {
      const std::uint32_t byte = *at;
      (void)skip(1);
      value |= std::uint64_t{byte & 0x7f} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // A count from 1 to what a page may hold.
  DPIF_HOST_DEVICE bool read_count(std::int32_t& count) {
    std::uint64_t value = 0;
    if (!read(value) || value == 0 || value > static_cast<std::uint64_t>(parquet::kMaxPageSize))
      return false;
    count = static_cast<std::int32_t>(value);
    return true;
  }

  // A signed number, the sign in the lowest bit.
  DPIF_HOST_DEVICE bool read_signed(std::uint64_t& value) {
    if (!read(value)) return false;
    value = value >> 1 ^ (0 - (value & 1));
    return true;
  }
};

// The `width` bits from `bit` on, 0 to 64.
DPIF_HOST_DEVICE std::uint64_t wide_bits_at(const std::uint8_t* words, std::uint32_t bit,
                                            std::uint32_t width) {
  if (width == 0) return 0;
  if (width <= 32) return bits_at(words, bit, width);
  return std::uint64_t{bits_at(words, bit + 32, width - 32)} << 32 | bits_at(words, bit, 32);
}

// Writes the first `count` values; false where there are fewer, or the bytes are no such page. With
// `rest`, the bytes behind the values, of which there must be no more.
template <class Number>
DPIF_HOST_DEVICE bool decode_delta(PageBytes bytes, std::int32_t count, Number* out,
                                   PageBytes* rest = nullptr) {
  constexpr std::int32_t kLeast = 32;  // values of a miniblock are a multiple
  if (count == 0) return true;
  VarintReader in{bytes.begin, bytes.size};
  std::int32_t block = 0, miniblocks = 0, total = 0;
  std::uint64_t value = 0;
  if (!in.read_count(block) || !in.read_count(miniblocks) || !in.read_count(total) ||
      !in.read_signed(value) || total < count || block % miniblocks != 0 ||
      (rest != nullptr && total > count))
    return false;
  const std::int32_t miniblock = block / miniblocks;
  if (miniblock % kLeast != 0) return false;
  if (lanes::index() == 0) out[0] = static_cast<Number>(value);
  for (std::int32_t done = 1; done < count;) {
    std::uint64_t least = 0;
    if (!in.read_signed(least)) return false;
    const std::uint8_t* widths = in.at;
    if (!in.skip(miniblocks)) return false;
    for (std::int32_t m = 0; m < miniblocks && done < count; ++m) {
      const std::uint32_t width = widths[m];
      const std::int32_t taken = miniblock < count - done ? miniblock : count - done;
      const std::int64_t needed = (std::int64_t{taken} * width + 7) / 8;
      // DuckDB takes differences of numbers of 4 bytes in 8, which may need 33 bits.
      if (width > 64 || needed > in.left) return false;
      const int off = misalignment(in.at);
      for (std::int32_t start = 0; start < taken; start += lanes::kCount) {
        const std::int32_t i = start + lanes::index();
        const std::uint32_t bit = 8 * off + static_cast<std::uint32_t>(i) * width;
        const std::uint64_t delta = i < taken ? least + wide_bits_at(in.at - off, bit, width) : 0;
        const lanes::WidePrefixSum sum = lanes::prefix_sum(delta);
        if (i < taken) out[done + i] = static_cast<Number>(value + sum.before + delta);
        value += sum.all;
      }
      const std::int64_t whole = std::int64_t{miniblock} * width / 8;
      (void)in.skip(static_cast<std::int32_t>(whole < in.left ? whole : in.left));
      done += taken;
    }
  }
  if (rest != nullptr) *rest = {in.at, in.left};
  return true;
}

}  // namespace dpiframe::pages
