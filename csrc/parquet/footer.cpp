#include "parquet/footer.h"

#include <algorithm>

#include "codec/decompress.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kNotThere = -1;
constexpr std::int64_t kConvertedInt32 = 17, kConvertedInt64 = 18;
constexpr std::int64_t kLogicalInteger = 10;
constexpr std::int64_t kRepeated = 2;

struct SchemaElement {
  std::string_view name;
  std::int64_t type = kNotThere;
  std::int64_t repetition = 0;
  std::int64_t children = 0;
  std::int64_t converted = kNotThere;
  std::int64_t logical = kNotThere;
  std::int64_t bits = 0;
  bool is_signed = true;
};

void read_logical_type(CompactReader& reader, SchemaElement& element) {
  using Type = CompactReader::Type;
  reader.fields([&](std::int64_t kind, Type outer) {
    element.logical = kind;
    if (kind != kLogicalInteger || outer != Type::kStruct) return reader.skip(outer);
    reader.fields([&](std::int64_t id, Type type) {
      if (id == 1 && type == Type::kByte) {
        element.bits = reader.byte();
      } else if (id == 2) {
        element.is_signed = type == Type::kTrue;
        reader.skip(type);
      } else {
        reader.skip(type);
      }
    });
  });
}

SchemaElement read_schema_element(CompactReader& reader) {
  using Type = CompactReader::Type;
  SchemaElement element;
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 1 && type == Type::kI32) {
      element.type = reader.integer();
    } else if (id == 3 && type == Type::kI32) {
      element.repetition = reader.integer();
    } else if (id == 4 && type == Type::kBinary) {
      element.name = reader.binary();
    } else if (id == 5 && type == Type::kI32) {
      element.children = reader.integer();
    } else if (id == 6 && type == Type::kI32) {
      element.converted = reader.integer();
    } else if (id == 10 && type == Type::kStruct) {
      read_logical_type(reader, element);
    } else {
      reader.skip(type);
    }
  });
  return element;
}

// Whether the values are numbers of the physical type, without any other meaning.
bool is_plain(const SchemaElement& element) {
  const bool is_int32 = element.type == static_cast<int>(PhysicalType::kInt32);
  const bool is_int64 = element.type == static_cast<int>(PhysicalType::kInt64);
  const bool is_float = element.type == static_cast<int>(PhysicalType::kFloat) ||
                        element.type == static_cast<int>(PhysicalType::kDouble);
  if (element.repetition == kRepeated) return false;
  if (is_float) return element.converted == kNotThere && element.logical == kNotThere;
  if (!is_int32 && !is_int64) return false;
  if (element.converted != kNotThere &&
      element.converted != (is_int32 ? kConvertedInt32 : kConvertedInt64))
    return false;
  return element.logical == kNotThere || (element.logical == kLogicalInteger && element.is_signed &&
                                          element.bits == (is_int32 ? 32 : 64));
}

// Steps over the element at `next` and all below it; returns how many leaves there are.
std::size_t pass_leaves(const std::vector<SchemaElement>& schema, std::size_t& next) {
  std::size_t leaves = 0;
  for (std::int64_t open = 1; open > 0; --open) {
    DPIF_CHECK(next < schema.size(), "the schema is cut off");
    const std::int64_t children = schema[next++].children;
    DPIF_CHECK(children >= 0 && children <= static_cast<std::int64_t>(schema.size()),
               "the schema has an element with ", children, " children");
    leaves += children == 0;
    open += children;
  }
  return leaves;
}

std::map<std::string, Column, std::less<>> top_level_columns(
    const std::vector<SchemaElement>& schema) {
  std::map<std::string, Column, std::less<>> columns;
  std::size_t next = 1, leaf = 0;  // the first element is the root
  while (next < schema.size()) {
    const SchemaElement& element = schema[next];
    Column column{leaf, static_cast<PhysicalType>(element.type),
                  element.children == 0 && is_plain(element), element.repetition == 1};
    leaf += pass_leaves(schema, next);
    const auto [place, is_new] = columns.emplace(element.name, column);
    if (!is_new) place->second.plain = false;  // two of one name: not for us to choose
  }
  return columns;
}

bool known_encoding(std::int64_t encoding) {
  switch (static_cast<Encoding>(encoding)) {
    case Encoding::kPlain:
    case Encoding::kPlainDictionary:
    case Encoding::kRle:
    case Encoding::kBitPacked:  // some writers list it for levels that are not there
    case Encoding::kRleDictionary:
      return true;
  }
  return false;
}

void read_chunk_metadata(CompactReader& reader, Chunk& chunk) {
  using Type = CompactReader::Type;
  std::int64_t data = kNotThere, dictionary = kNotThere;
  chunk.readable = true;
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 1 && type == Type::kI32) {
      chunk.type = static_cast<PhysicalType>(reader.integer());
    } else if (id == 2 && type == Type::kList) {
      reader.list([&](Type) { chunk.readable &= known_encoding(reader.integer()); });
    } else if (id == 4 && type == Type::kI32) {
      chunk.codec = static_cast<Codec>(reader.integer());
      chunk.readable &= can_decompress(chunk.codec);
    } else if (id == 5 && type == Type::kI64) {
      chunk.values = reader.integer();
    } else if (id == 7 && type == Type::kI64) {
      chunk.bytes = reader.integer();
    } else if (id == 9 && type == Type::kI64) {
      data = reader.integer();
    } else if (id == 11 && type == Type::kI64) {
      dictionary = reader.integer();
    } else if (id == 12 && type == Type::kStruct) {
      reader.fields([&](std::int64_t fact, Type inner) {
        if (fact == 3 && inner == Type::kI64)
          chunk.readable &= reader.integer() == 0;  // nulls
        else
          reader.skip(inner);
      });
    } else {
      reader.skip(type);
    }
  });
  chunk.begin = dictionary > 0 && dictionary < data ? dictionary : data;
}

Chunk read_chunk(CompactReader& reader) {
  using Type = CompactReader::Type;
  Chunk chunk;
  bool elsewhere = false;  // in another file, or encrypted
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 3 && type == Type::kStruct) return read_chunk_metadata(reader, chunk);
    elsewhere |= id == 1 || id == 8 || id == 9;
    reader.skip(type);
  });
  chunk.readable &= !elsewhere && chunk.begin >= 4 && chunk.bytes > 0;
  return chunk;
}

RowGroup read_row_group(CompactReader& reader) {
  using Type = CompactReader::Type;
  RowGroup group;
  group.rows = kNotThere;
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 1 && type == Type::kList)
      reader.list([&](Type) { group.chunks.push_back(read_chunk(reader)); });
    else if (id == 3 && type == Type::kI64)
      group.rows = reader.integer();
    else
      reader.skip(type);
  });
  return group;
}

// Every row group has each leaf of the schema, and all rows together can be counted.
void check_groups(const std::vector<RowGroup>& groups, std::size_t num_leaves) {
  std::int64_t rows = 0;
  for (const RowGroup& group : groups) {
    DPIF_CHECK(group.rows >= 0 && group.chunks.size() == num_leaves, "a row group has ", group.rows,
               " rows and ", group.chunks.size(), " columns, the schema has ", num_leaves);
    DPIF_CHECK(group.rows <= INT64_MAX - rows, "the row groups have more than ", INT64_MAX,
               " rows");
    rows += group.rows;
  }
}

}  // namespace

Footer parse_footer(Bytes bytes) {
  using Type = CompactReader::Type;
  CompactReader reader(bytes);
  Footer footer;
  std::vector<SchemaElement> schema;
  bool has_groups = false;
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 2 && type == Type::kList) {
      reader.list([&](Type) { schema.push_back(read_schema_element(reader)); });
    } else if (id == 4 && type == Type::kList) {
      reader.list([&](Type) { footer.groups.push_back(read_row_group(reader)); });
      has_groups = true;
    } else {
      reader.skip(type);
    }
  });
  DPIF_CHECK(has_groups, "the footer has no list of row groups");
  std::size_t next = 0;
  const std::size_t num_leaves = pass_leaves(schema, next);
  DPIF_CHECK(next == schema.size(), "the schema has elements behind its end");
  check_groups(footer.groups, num_leaves);  // only now: fields come in any order
  footer.columns = top_level_columns(schema);
  return footer;
}

}  // namespace dpiframe::parquet
