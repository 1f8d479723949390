// The footer of a parquet file (FileMetaData of parquet.thrift): its columns at the top level,
// where their column chunks lie, and what is needed to look at statistics and to convert the
// schema.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parquet/metadata/compact_reader.h"
#include "parquet/metadata/format.h"

namespace dpiframe::parquet {

// `readable` says whether this reader knows the chunk's codec and encodings.
struct ColumnChunk {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  std::int64_t values = -1;
  PhysicalType type{};
  Codec codec{};
  std::int64_t uncompressed_bytes = 0;
  bool readable = false;
  bool encrypted = false;
  bool lists_indices = false;        // encodings: those of indices of a dictionary
  bool lists_others = false;         // those that are neither these nor PLAIN
  bool counts_only_indices = false;  // by the counts of pages; without them nothing is known
  bool has_nulls = false;            // as its statistics count them
  Bytes statistics;                  // a Thrift struct; empty where there is none
  // How many of the levels its statistics count values of; 0: none.
  std::int32_t definition_levels = 0;
  std::int32_t repetition_levels = 0;
  bool counts_text_bytes = false;
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<ColumnChunk> chunks;  // [leaves]
};

// The order that statistics give to the values of a column.
enum class ColumnOrder : std::int8_t { kUndefined, kTypeDefined, kUnknown };

// The elements of a column of lists: numbers.
struct ListElement {
  PhysicalType type{};
  int integer_bits = 0;  // 0 where they are no integers
  bool is_signed = true;
  int slot_level = 0;   // definition level from which on a list has the element, which may be null
  int value_level = 0;  // that of an element which is no null
};

// A column at the top level.
struct Column {
  std::size_t leaf = 0;
  PhysicalType type{};
  int integer_bits = 0;   // of integers as their logical type has them; 0 where they are none
  bool is_signed = true;  // whether values are compared as signed numbers
  bool flat = false;      // neither a group nor repeated
  bool plain = false;     // flat, its name is unique, and its values are numbers of `type`, no more
  bool number = false;    // flat, its name is unique, and its values are numbers of any width
  bool text = false;      // flat, its name is unique, and its values are strings or mere bytes
  bool optional = false;
  std::optional<ListElement> list;  // of a column whose name is unique
  ColumnOrder order = ColumnOrder::kUndefined;
};

struct Footer {
  Footer() = default;
  Footer(Footer&&) = default;
  Footer& operator=(Footer&&) = default;

  std::vector<std::uint8_t> bytes;  // views below point into them
  std::map<std::string_view, Column> columns;
  std::vector<RowGroup> groups;
  std::string_view created_by;
  Bytes schema;        // the list of schema elements
  Bytes arrow_schema;  // the key-value pair that holds it, if there is one
};

// Throws std::invalid_argument where the bytes are no footer, or describe columns and row groups in
// far fewer bytes than a writer needs. Time and memory are linear in the bytes.
Footer parse_footer(std::vector<std::uint8_t> bytes);

// A parquet file without row groups that has the schema of this footer.
std::string empty_file(const Footer& footer);

}  // namespace dpiframe::parquet
