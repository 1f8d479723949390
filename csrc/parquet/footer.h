// What the end of a parquet file tells: its flat columns, and where their chunks lie.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parquet/compact_reader.h"
#include "parquet/format.h"

namespace dpiframe::parquet {

// A chunk of a column; `readable` says whether this reader knows its type, codec and encodings, and
// nothing tells of nulls.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  std::int64_t values = -1;
  PhysicalType type{};
  Codec codec{};
  bool readable = false;
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<Chunk> chunks;  // [leaves]
};

// A column at the top level; `plain` where its values are numbers of its physical type and no more.
struct Column {
  std::size_t leaf = 0;
  PhysicalType type{};
  bool plain = false;
  bool optional = false;
};

struct Footer {
  std::map<std::string, Column, std::less<>> columns;  // by name
  std::vector<RowGroup> groups;
};

// Throws std::invalid_argument where the bytes are no footer.
Footer parse_footer(Bytes bytes);

}  // namespace dpiframe::parquet
