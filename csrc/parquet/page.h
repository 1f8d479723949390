// A page of a unit's column chunks, and where its values go: all that is needed to decompress and
// decode it without its file.
#pragma once

#include <cstdint>

#include "codec/codec.h"

namespace dpiframe::parquet {

// Neither bytes nor values of a page are more: its bits can be counted in 32 bits.
constexpr std::int32_t kMaxPageSize = 1 << 26;

enum class PageKind : std::int8_t {
  kPlain,       // a data page of PLAIN numbers
  kDelta,       // of DELTA_BINARY_PACKED integers
  kSplit,       // of BYTE_STREAM_SPLIT numbers
  kIndices,     // of dictionary indices: RLE/bit-packed runs
  kDictionary,  // a dictionary page of PLAIN numbers
  kCodes,       // kIndices with nulls, whose dictionary holds codes of a raw column's values
  kTexts,       // PLAIN texts, with nulls, which are hashed to codes
};

// Of columns of numbers that all have 4, or all 8, bytes.
struct Page {
  std::int64_t compressed_at;    // offset of its first byte in the unit's column chunks
  std::int64_t uncompressed_at;  // its offset among the decompressed pages: a multiple of 16
  std::int64_t row;              // of its first value in the unit
  std::int32_t compressed_bytes;
  std::int32_t uncompressed_bytes;
  std::int32_t values;      // with nulls
  std::int32_t column;      // of the unit's
  std::int32_t dictionary;  // of indices: which page of the unit is their dictionary
  Codec codec;              // kNone: its compressed bytes are its values
  PageKind kind;
  bool levels;  // definition levels stand before the values, with their length in 4 bytes
  // Of raw columns:
  std::int32_t missing;      // code of a null and, of texts, of an empty one
  std::int32_t level_bytes;  // definition levels that stand apart, never compressed; 0: none
  std::uint32_t modulus;     // of texts: features/xxh64.h
  std::int64_t levels_at;    // of those apart, in the unit's column chunks
  std::uint64_t seed;        // of texts
};

}  // namespace dpiframe::parquet
