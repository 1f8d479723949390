// Walks over the runs of parquet's RLE/bit-packed hybrid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/metadata/compact_reader.h"

namespace dpiframe::parquet {

inline std::uint32_t index_at(const PackedIndices& indices, std::int64_t i) {
  const std::int64_t bit = i * indices.width;
  std::uint64_t bytes;  // an index of 32 bits may lie in five
  std::memcpy(&bytes, indices.bits + bit / 8, sizeof(bytes));
  return static_cast<std::uint32_t>(bytes >> bit % 8 & ((std::uint64_t{1} << indices.width) - 1));
}

// Calls run(value, count) for runs of one value and packed(indices) for bit-packed ones, until
// there are `count` values.
template <class Run, class Packed>
void for_each_run(Bytes bytes, int width, std::int64_t count, Run run, Packed packed) {
  CompactReader reader(bytes);
  const std::size_t value_bytes = (width + 7) / 8;
  while (count > 0) {
    const std::uint64_t head = reader.varint();
    DPIF_CHECK(head > 1 && head >> 1 <= INT32_MAX, "a page has a run of ", head >> 1, " values");
    const auto length = static_cast<std::int64_t>(head >> 1);
    if ((head & 1) == 0) {
      std::uint32_t value = 0;
      for (std::size_t b = 0; b < value_bytes; ++b)
        value |= static_cast<std::uint32_t>(reader.byte()) << (8 * b);
      const std::int64_t taken = std::min(length, count);
      run(value, taken);
      count -= taken;
    } else {
      const std::int64_t taken = std::min(8 * length, count);
      const auto* bits = bytes.data() + reader.at();
      // Some writers leave out what fills the last group.
      const auto needed = static_cast<std::size_t>((taken * width + 7) / 8);
      const auto whole = static_cast<std::size_t>(length * width);
      const std::size_t left = bytes.size() - reader.at();
      DPIF_CHECK(needed <= left, "a page is cut off");
      reader = CompactReader(bytes, reader.at() + std::min(whole, left));
      packed(PackedIndices{bits, taken, width});
      count -= taken;
    }
  }
}

}  // namespace dpiframe::parquet
