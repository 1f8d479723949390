// The header that stands before each page of a column chunk.
#pragma once

#include <cstdint>
#include <optional>

#include "parquet/metadata/compact_reader.h"
#include "parquet/metadata/format.h"

namespace dpiframe::parquet {

struct PageHeader {
  std::size_t header_bytes = 0;
  PageType type{};
  std::int64_t bytes = 0;               // of the page as stored
  std::int64_t uncompressed_bytes = 0;  // of the page decompressed
  std::optional<std::uint32_t> crc;
  std::int64_t num_values = 0;
  Encoding encoding{};
  Encoding levels = Encoding::kRle;  // of definition
  Encoding repetition_levels = Encoding::kRle;
  // Version 2: levels stand before the values and are never compressed.
  std::int64_t num_nulls = 0;
  std::int64_t level_bytes = 0;       // of all levels
  std::int64_t repetition_bytes = 0;  // of those of repetition, which stand first
  bool compressed = true;
};

// More bytes than any encoding of numbers takes for a value with its levels.
constexpr std::int64_t kMostOfNumber = 16;
// Bytes that a page may have beside these.
constexpr std::int64_t kMostBeside = 4096;

// Throws std::invalid_argument where the bytes begin with no page header, the page is cut off, or
// it claims to unpack to more bytes than its values can take, of `most_of_value` on average.
PageHeader read_page_header(Bytes bytes, std::int64_t most_of_value = kMostOfNumber);

// std::invalid_argument where a dictionary has more values than a column chunk of so many rows
// needs.
void check_dictionary_size(const PageHeader& page, std::int64_t rows);

// std::invalid_argument where so few compressed bytes cannot unpack to so many.
void check_ratio(Codec codec, std::int64_t compressed_bytes, std::int64_t uncompressed_bytes);

}  // namespace dpiframe::parquet
