// The column chunks of a unit, and where their bytes go.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parquet/file.h"

namespace dpiframe::parquet {

struct UnitChunk {
  const ColumnChunk* chunk;
  std::size_t group;
  std::size_t name;
  bool optional;
  std::int64_t row;  // of its first value in the unit
  std::int64_t rows;
  std::int64_t at;  // of its first byte among the unit's
};

// The chunks of these columns in row groups [first, stop), those of a row group as they lie in the
// file. std::invalid_argument: chunks that lie behind the end or share bytes, or whose pages a GPU
// does not decompress.
std::vector<UnitChunk> unit_chunks(const File& file, const std::vector<std::string>& names,
                                   std::size_t first, std::size_t stop);

// Bytes of all chunks.
std::int64_t bytes_of(const std::vector<UnitChunk>& chunks);

// Chunks that lie one behind the other are read at once. FileError.
void read_chunks(const FileBytes& file, const std::vector<UnitChunk>& chunks,
                 std::span<std::uint8_t> bytes);

// What errors begin with: row group and column.
std::string place_of(const UnitChunk& unit_chunk, const std::vector<std::string>& names);

}  // namespace dpiframe::parquet
