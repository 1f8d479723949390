// A page as it is stored, and where its values go: all that is needed to unpack it without its
// file.
#pragma once

#include <cstdint>

namespace dpiframe::parquet {

// Neither bytes nor values of a page are more: its bits can be counted in 32 bits.
constexpr std::int32_t kMostOfPage = 1 << 26;

enum class PageKind : std::int8_t {
  kPlain,       // numbers as they are
  kIndices,     // indices of the dictionary, runs and bit-packed
  kDictionary,  // numbers as they are, which pages of indices refer to
};

// Of columns of numbers that all have 4, or all 8, bytes.
struct StoredPage {
  std::int64_t packed_at;    // its first byte among the unit's stored ones
  std::int64_t unpacked_at;  // its room among the unit's unpacked bytes: a multiple of 16
  std::int64_t row;          // of its first value in the unit
  std::int32_t packed_bytes;
  std::int32_t unpacked_bytes;
  std::int32_t values;
  std::int32_t column;      // of the unit's
  std::int32_t dictionary;  // of indices: which page of the unit is their dictionary
  PageKind kind;
  bool compressed;  // by zstd; else its stored bytes are its values
  bool levels;      // definition levels stand before the values, with their length in 4 bytes
};

}  // namespace dpiframe::parquet
