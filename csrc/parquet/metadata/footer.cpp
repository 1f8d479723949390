#include "parquet/metadata/footer.h"

#include <array>
#include <bit>
#include <optional>

#include "codec/decompress.h"
#include "parquet/metadata/statistics.h"

namespace dpiframe::parquet {
namespace {

using Type = CompactReader::Type;

constexpr std::int64_t kNotThere = -1;
constexpr std::int64_t kConvertedUtf8 = 0, kConvertedList = 3, kLogicalString = 1, kLogicalList = 3;
constexpr std::int64_t kConvertedDecimal = 5, kConvertedTimestamp = 10;
constexpr std::int64_t kConvertedUint8 = 11;
constexpr std::int64_t kConvertedInt8 = 15, kConvertedInt32 = 17, kConvertedInt64 = 18;
constexpr std::int64_t kLogicalDecimal = 5, kLogicalTimestamp = 8;
constexpr std::int64_t kLogicalInteger = 10, kLogicalFloat16 = 15;
constexpr std::int64_t kOptional = 1, kRepeated = 2;
constexpr std::string_view kArrowSchema = "ARROW:schema";
// Arrow converts a schema by recursion; real ones nest a few levels.
constexpr std::size_t kDeepestSchema = 256;

// The fields that parquet.thrift requires in a struct, by id, with their types.
class RequiredFields {
 public:
  explicit RequiredFields(std::initializer_list<std::pair<int, Type>> fields) {
    for (const auto& [id, type] : fields) types_[id] = type, missing_ |= 1u << id;
  }
  void see(std::int64_t id, Type type) {
    if (type == Type::kFalse) type = Type::kTrue;  // a bool
    if (id > 0 && id < kIds && types_[id] == type) missing_ &= ~(1u << id);
  }
  void check(std::string_view name) const {
    DPIF_CHECK(missing_ == 0, "a ", name, " lacks field ", std::countr_zero(missing_));
  }

 private:
  static constexpr int kIds = 16;
  std::array<Type, kIds> types_{};
  std::uint32_t missing_ = 0;
};

// Skips a list of structs that have these required fields.
void skip_structs(CompactReader& reader, std::string_view name, const RequiredFields& fields) {
  reader.list([&](Type) {
    RequiredFields required = fields;
    reader.fields([&](std::int64_t id, Type type) {
      required.see(id, type);
      reader.skip(type);
    });
    required.check(name);
  });
}

struct SchemaElement {
  std::string_view name;
  std::int64_t type = kNotThere;
  std::int64_t repetition = 0;
  std::int64_t children = 0;
  std::int64_t converted = kNotThere;
  std::int64_t logical = kNotThere;
  std::int64_t bits = 0;
  bool is_signed = true;

  bool is_leaf() const { return children == 0 && type != kNotThere; }
};

void read_logical_type(CompactReader& reader, SchemaElement& element) {
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
  SchemaElement element;
  RequiredFields required({{4, Type::kBinary}});
  reader.fields([&](std::int64_t id, Type type) {
    required.see(id, type);
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
  required.check("schema element");
  return element;
}

// Whether the values are numbers of the physical type, without any other meaning.
bool is_plain(const SchemaElement& element) {
  const bool is_int32 = element.type == static_cast<int>(PhysicalType::kInt32);
  const bool is_int64 = element.type == static_cast<int>(PhysicalType::kInt64);
  const bool is_float = element.type == static_cast<int>(PhysicalType::kFloat) ||
                        element.type == static_cast<int>(PhysicalType::kDouble);
  if (is_float) return element.converted == kNotThere && element.logical == kNotThere;
  if (!is_int32 && !is_int64) return false;
  if (element.converted != kNotThere &&
      element.converted != (is_int32 ? kConvertedInt32 : kConvertedInt64))
    return false;
  return element.logical == kNotThere || (element.logical == kLogicalInteger && element.is_signed &&
                                          element.bits == (is_int32 ? 32 : 64));
}

// Whether parquet orders the values of a column as signed numbers.
bool is_signed(const SchemaElement& element) {
  const auto within = [](std::int64_t kind, std::int64_t first, std::int64_t last) {
    return kind >= first && kind <= last;
  };
  if (element.logical == kLogicalInteger) return element.is_signed;
  if (element.logical != kNotThere)
    return within(element.logical, kLogicalDecimal, kLogicalTimestamp) ||
           element.logical == kLogicalFloat16;
  if (element.converted != kNotThere)
    return within(element.converted, kConvertedDecimal, kConvertedTimestamp) ||
           within(element.converted, kConvertedInt8, kConvertedInt64);
  return element.type != static_cast<int>(PhysicalType::kInt96) &&
         element.type < static_cast<int>(PhysicalType::kByteArray);
}

int integer_bits(const SchemaElement& element) {
  const int physical = element.type == static_cast<int>(PhysicalType::kInt32) ? 32 : 64;
  std::int64_t bits = physical;
  if (element.logical == kLogicalInteger)
    bits = element.bits;
  else if (element.logical == kNotThere && element.converted >= kConvertedUint8 &&
           element.converted <= kConvertedInt64)
    bits = std::int64_t{8} << (element.converted - kConvertedUint8) % 4;
  return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? static_cast<int>(bits) : physical;
}

// Strings, and bytes of which nothing more is said, as some writers store strings.
bool is_text(const SchemaElement& element) {
  return element.type == static_cast<int>(PhysicalType::kByteArray) &&
         (element.converted == kConvertedUtf8 || element.converted == kNotThere) &&
         (element.logical == kLogicalString || element.logical == kNotThere);
}

// Whether the values are numbers of the physical type, integers perhaps narrower or unsigned.
bool is_number(const SchemaElement& element) {
  const auto type = static_cast<PhysicalType>(element.type);
  if (type != PhysicalType::kInt32 && type != PhysicalType::kInt64) return is_plain(element);
  return (element.converted == kNotThere ||
          (element.converted >= kConvertedUint8 && element.converted <= kConvertedInt64)) &&
         (element.logical == kNotThere || element.logical == kLogicalInteger);
}

// The elements of the column that begins at `at`, if it holds lists of numbers, as LIST of
// parquet-format's LogicalTypes.md has them: a group, which may be null, of one repeated child,
// which is the element or a group of the element alone.
std::optional<ListElement> list_element(const std::vector<SchemaElement>& schema, std::size_t at) {
  const SchemaElement& outer = schema[at];
  const bool is_list = outer.logical == kLogicalList ||
                       (outer.logical == kNotThere && outer.converted == kConvertedList);
  if (!is_list || outer.children != 1 || outer.repetition == kRepeated || at + 1 >= schema.size())
    return {};
  const SchemaElement& repeated = schema[++at];
  if (repeated.repetition != kRepeated) return {};
  const bool nested = !repeated.is_leaf();
  // A group of these names is the element itself, by older rules.
  if (nested && (repeated.children != 1 || at + 1 >= schema.size() || repeated.name == "array" ||
                 repeated.name.ends_with("_tuple")))
    return {};
  const SchemaElement& element = nested ? schema[++at] : repeated;
  if (!element.is_leaf() || !is_number(element) || (nested && element.repetition == kRepeated))
    return {};
  ListElement found;
  found.type = static_cast<PhysicalType>(element.type);
  const bool is_integer = found.type == PhysicalType::kInt32 || found.type == PhysicalType::kInt64;
  found.integer_bits = is_integer ? integer_bits(element) : 0;
  found.is_signed = is_signed(element);
  found.slot_level = (outer.repetition == kOptional ? 1 : 0) + 1;
  found.value_level = found.slot_level + (nested && element.repetition == kOptional ? 1 : 0);
  return found;
}

// A column of values, with the numbers of its levels.
struct Leaf {
  PhysicalType type;
  std::int64_t definition_levels;
  std::int64_t repetition_levels;
};

// Appends the leaves at or below the element at `next`, and steps over all these elements. The
// levels count from there.
void pass_leaves(const std::vector<SchemaElement>& schema, std::size_t& next,
                 std::vector<Leaf>& leaves) {
  struct Group {
    std::int64_t children;  // still to come
    std::int64_t definition_levels;
    std::int64_t repetition_levels;
  };
  std::vector<Group> open{{1, 1, 1}};
  while (!open.empty()) {
    if (open.back().children-- == 0) {
      open.pop_back();
      continue;
    }
    DPIF_CHECK(next < schema.size(), "the schema is cut off");
    const SchemaElement& element = schema[next++];
    DPIF_CHECK(element.children >= 0, "the schema has an element with ", element.children,
               " children");
    DPIF_CHECK(open.size() < kDeepestSchema, "the schema nests deeper than ", kDeepestSchema);
    const std::int64_t definition_levels =
        open.back().definition_levels +
        (element.repetition == kOptional || element.repetition == kRepeated);
    const std::int64_t repetition_levels =
        open.back().repetition_levels + (element.repetition == kRepeated);
    if (element.is_leaf())
      leaves.push_back(
          {static_cast<PhysicalType>(element.type), definition_levels, repetition_levels});
    open.push_back({element.children, definition_levels, repetition_levels});
  }
}

// What an element of the schema becomes: itself, its leaf, a node of the map of columns.
constexpr std::size_t kElementBytes =
    sizeof(SchemaElement) + 2 * sizeof(Leaf) + sizeof(Column) + 64;

// The columns, and all leaves of the schema.
std::map<std::string_view, Column> top_level_columns(const std::vector<SchemaElement>& schema,
                                                     std::vector<Leaf>& leaves) {
  std::map<std::string_view, Column> columns;
  DPIF_CHECK(!schema.empty(), "the schema is empty");
  std::size_t next = 1;
  for (std::int64_t children = schema[0].children; children > 0; --children) {
    DPIF_CHECK(next < schema.size(), "the schema is cut off");
    const SchemaElement& element = schema[next];
    Column column;
    column.leaf = leaves.size();
    column.type = static_cast<PhysicalType>(element.type);
    column.integer_bits = integer_bits(element);
    column.is_signed = is_signed(element);
    column.flat = element.is_leaf() && element.repetition != kRepeated;
    column.plain = column.flat && is_plain(element);
    column.number = column.flat && is_number(element);
    column.text = column.flat && is_text(element);
    column.optional = element.repetition == kOptional;
    column.list = list_element(schema, next);
    pass_leaves(schema, next, leaves);
    const auto [place, is_new] = columns.emplace(element.name, column);
    if (is_new) continue;
    if (column.flat) place->second = column;
    // Two of one name: not for us to choose.
    place->second.plain = place->second.number = place->second.text = false;
    place->second.list.reset();
  }
  DPIF_CHECK(next == schema.size(), "the schema has elements behind its end");
  return columns;
}

bool is_index(std::int64_t encoding) {
  return encoding == static_cast<int>(Encoding::kRleDictionary) ||
         encoding == static_cast<int>(Encoding::kPlainDictionary);
}

bool known_encoding(std::int64_t encoding) {
  switch (static_cast<Encoding>(encoding)) {
    case Encoding::kPlain:
    case Encoding::kPlainDictionary:
    case Encoding::kRle:
    case Encoding::kDeltaBinaryPacked:
    case Encoding::kDeltaLengthByteArray:
    case Encoding::kDeltaByteArray:
    case Encoding::kByteStreamSplit:
    case Encoding::kBitPacked:  // some writers list it for levels that are not there
    case Encoding::kRleDictionary:
      return true;
  }
  return false;
}

// SizeStatistics: how many values have each of the levels.
void read_size_statistics(CompactReader& reader, ColumnChunk& chunk) {
  const auto size_of_list = [&] {
    std::int64_t size = 0;
    reader.list([&](Type) { ++size, (void)reader.integer(); });
    return size;
  };
  reader.fields([&](std::int64_t id, Type type) {
    chunk.counts_text_bytes |= id == 1 && type == Type::kI64;
    if (id == 2 && type == Type::kList)
      chunk.repetition_levels = size_of_list();
    else if (id == 3 && type == Type::kList)
      chunk.definition_levels = size_of_list();
    else
      reader.skip(type);
  });
}

// PageEncodingStats: how many pages of which type have which encoding.
void read_page_encodings(CompactReader& reader, ColumnChunk& chunk) {
  chunk.counts_only_indices = true;
  reader.list([&](Type) {
    std::int64_t page = 0, encoding = 0;
    RequiredFields required({{1, Type::kI32}, {2, Type::kI32}, {3, Type::kI32}});
    reader.fields([&](std::int64_t id, Type type) {
      required.see(id, type);
      if (id == 1 && type == Type::kI32)
        page = reader.integer();
      else if (id == 2 && type == Type::kI32)
        encoding = reader.integer();
      else
        reader.skip(type);
    });
    required.check("page's encoding");
    chunk.counts_only_indices &=
        page == static_cast<int>(PageType::kDictionary) || is_index(encoding);
  });
}

void read_column_metadata(CompactReader& reader, ColumnChunk& chunk) {
  std::int64_t data = kNotThere, dictionary = kNotThere;
  bool has_deltas = false;
  chunk.readable = true;
  RequiredFields required({{1, Type::kI32},
                           {2, Type::kList},
                           {3, Type::kList},
                           {4, Type::kI32},
                           {5, Type::kI64},
                           {6, Type::kI64},
                           {7, Type::kI64},
                           {9, Type::kI64}});
  reader.fields([&](std::int64_t id, Type type) {
    required.see(id, type);
    if (id == 1 && type == Type::kI32) {
      chunk.type = static_cast<PhysicalType>(reader.integer());
    } else if (id == 2 && type == Type::kList) {
      reader.list([&](Type) {
        const std::int64_t encoding = reader.integer();
        chunk.readable &= known_encoding(encoding);
        chunk.lists_indices |= is_index(encoding);
        chunk.lists_others |= !is_index(encoding) &&
                              encoding != static_cast<int>(Encoding::kPlain) &&
                              encoding != static_cast<int>(Encoding::kRle);
        has_deltas |= encoding == static_cast<int>(Encoding::kDeltaBinaryPacked);
      });
    } else if (id == 4 && type == Type::kI32) {
      chunk.codec = static_cast<Codec>(reader.integer());
      chunk.readable &= can_decompress(chunk.codec);
    } else if (id == 5 && type == Type::kI64) {
      chunk.values = reader.integer();
    } else if (id == 6 && type == Type::kI64) {
      chunk.uncompressed_bytes = reader.integer();
    } else if (id == 7 && type == Type::kI64) {
      chunk.bytes = reader.integer();
    } else if (id == 9 && type == Type::kI64) {
      data = reader.integer();
    } else if (id == 11 && type == Type::kI64) {
      dictionary = reader.integer();
    } else if (id == 12 && type == Type::kStruct) {
      const std::size_t from = reader.at();
      chunk.has_nulls = read_statistics(reader).nulls.value_or(0) != 0;
      chunk.statistics = reader.since(from);
    } else if (id == 8 && type == Type::kList) {
      skip_structs(reader, "key-value pair", RequiredFields({{1, Type::kBinary}}));
    } else if (id == 13 && type == Type::kList) {
      read_page_encodings(reader, chunk);
    } else if (id == 16 && type == Type::kStruct) {
      read_size_statistics(reader, chunk);
    } else {
      reader.skip(type);
    }
  });
  required.check("column chunk's metadata");
  chunk.readable &=
      !has_deltas || chunk.type == PhysicalType::kInt32 || chunk.type == PhysicalType::kInt64;
  chunk.begin = dictionary > 0 && dictionary < data ? dictionary : data;
}

ColumnChunk read_column_chunk(CompactReader& reader) {
  ColumnChunk chunk;
  bool elsewhere = false;  // in another file, or encrypted
  RequiredFields required({{2, Type::kI64}});
  reader.fields([&](std::int64_t id, Type type) {
    required.see(id, type);
    if (id == 3 && type == Type::kStruct) return read_column_metadata(reader, chunk);
    chunk.encrypted |= id == 8 || id == 9;
    elsewhere |= id == 1 || chunk.encrypted;
    reader.skip(type);
  });
  required.check("column chunk");
  chunk.readable &= !elsewhere && chunk.begin >= 4 && chunk.bytes > 0;
  return chunk;
}

// The memory of what a footer describes: three times its size, and as much as small footers may
// need. A footer that lies holds schema elements and chunks of a few bytes each.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t footer_bytes) : left_(3 * footer_bytes + (32 << 20)) {}
  // Takes what the entries of the list that comes next need, and returns their number.
  std::size_t take_list(const CompactReader& reader, std::size_t entry_bytes) {
    const std::uint64_t size = reader.list_size();
    DPIF_CHECK(size <= left_ / entry_bytes, "it describes too much for its size");
    left_ -= size * entry_bytes;
    return size;
  }

 private:
  std::size_t left_;
};

RowGroup read_row_group(CompactReader& reader, MemoryBudget& budget) {
  RowGroup group;
  RequiredFields required({{1, Type::kList}, {2, Type::kI64}, {3, Type::kI64}});
  reader.fields([&](std::int64_t id, Type type) {
    required.see(id, type);
    if (id == 1 && type == Type::kList) {
      group.chunks.reserve(group.chunks.size() + budget.take_list(reader, sizeof(ColumnChunk)));
      reader.list([&](Type) { group.chunks.push_back(read_column_chunk(reader)); });
    } else if (id == 3 && type == Type::kI64) {
      group.rows = reader.integer();
    } else if (id == 4 && type == Type::kList) {
      skip_structs(reader, "sorting column",
                   RequiredFields({{1, Type::kI32}, {2, Type::kTrue}, {3, Type::kTrue}}));
    } else {
      reader.skip(type);
    }
  });
  required.check("row group");
  return group;
}

// One for each leaf: a union of which only the first member is known.
std::vector<ColumnOrder> read_column_orders(CompactReader& reader) {
  std::vector<ColumnOrder> orders;
  reader.list([&](Type) {
    ColumnOrder order = ColumnOrder::kUnknown;
    reader.fields([&](std::int64_t id, Type type) {
      if (id == 1 && type == Type::kStruct) order = ColumnOrder::kTypeDefined;
      reader.skip(type);
    });
    orders.push_back(order);
  });
  return orders;
}

bool holds_arrow_schema(CompactReader& reader) {
  bool holds = false;
  RequiredFields required({{1, Type::kBinary}});
  reader.fields([&](std::int64_t id, Type type) {
    required.see(id, type);
    if (id == 1 && type == Type::kBinary)
      holds = reader.binary() == kArrowSchema;
    else
      reader.skip(type);
  });
  required.check("key-value pair");
  return holds;
}

// Every row group has each leaf of the schema, and all rows together can be counted. Counts of
// levels fit the schema: Arrow, which reads what this reader does not, would end the process.
void check_groups(const std::vector<RowGroup>& groups, const std::vector<Leaf>& leaves) {
  std::int64_t rows = 0;
  for (const RowGroup& group : groups) {
    DPIF_CHECK(group.rows >= 0, "a row group of ", group.rows, " rows");
    DPIF_CHECK(group.chunks.size() == leaves.size(), "a row group has ", group.chunks.size(),
               " columns, the schema has ", leaves.size());
    DPIF_CHECK(group.rows <= INT64_MAX - rows, "the row groups have more than ", INT64_MAX,
               " rows");
    rows += group.rows;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      const ColumnChunk& chunk = group.chunks[i];
      const auto fits = [](std::int64_t counts, std::int64_t levels) {
        return counts == 0 || counts == levels;
      };
      DPIF_CHECK(fits(chunk.definition_levels, leaves[i].definition_levels) &&
                     fits(chunk.repetition_levels, leaves[i].repetition_levels) &&
                     (!chunk.counts_text_bytes || leaves[i].type == PhysicalType::kByteArray),
                 "column ", i, " has statistics of the sizes of another column");
    }
  }
}

void append(std::string& text, Bytes bytes) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

Footer parse_footer(std::vector<std::uint8_t> bytes) {
  Footer footer;
  footer.bytes = std::move(bytes);
  CompactReader reader(footer.bytes);
  MemoryBudget budget(footer.bytes.size());
  std::vector<SchemaElement> schema;
  std::optional<std::vector<ColumnOrder>> orders;
  RequiredFields required({{1, Type::kI32}, {2, Type::kList}, {3, Type::kI64}, {4, Type::kList}});
  reader.fields([&](std::int64_t id, Type type) {
    required.see(id, type);
    const std::size_t from = reader.at();
    if (id == 2 && type == Type::kList) {
      schema.clear();
      schema.reserve(budget.take_list(reader, kElementBytes));
      reader.list([&](Type) { schema.push_back(read_schema_element(reader)); });
      footer.schema = reader.since(from);
    } else if (id == 4 && type == Type::kList) {
      footer.groups.clear();
      footer.groups.reserve(budget.take_list(reader, sizeof(RowGroup)));
      reader.list([&](Type) { footer.groups.push_back(read_row_group(reader, budget)); });
    } else if (id == 5 && type == Type::kList) {
      reader.list([&](Type) {
        const std::size_t pair = reader.at();
        if (holds_arrow_schema(reader) && footer.arrow_schema.empty())
          footer.arrow_schema = reader.since(pair);
      });
    } else if (id == 6 && type == Type::kBinary) {
      footer.created_by = reader.binary();
    } else if (id == 7 && type == Type::kList) {
      orders = read_column_orders(reader);
    } else {
      reader.skip(type);
    }
  });
  required.check("footer");
  std::vector<Leaf> leaves;
  footer.columns = top_level_columns(schema, leaves);
  check_groups(footer.groups, leaves);  // only now: fields come in any order
  DPIF_CHECK(!orders.has_value() || orders->size() == leaves.size(), "there are orders for ",
             orders.value_or(std::vector<ColumnOrder>()).size(), " columns, the schema has ",
             leaves.size());
  for (auto& [name, column] : footer.columns)
    if (column.flat && orders.has_value()) column.order = (*orders)[column.leaf];
  return footer;
}

std::string empty_file(const Footer& footer) {
  std::string file = "PAR1";
  file += "\x15\x02\x19";  // version, of which nothing follows here; the schema
  append(file, footer.schema);
  file += std::string_view("\x16\0\x19\x0c\x19", 5);      // no rows; no row groups; key-value pairs
  file += footer.arrow_schema.empty() ? '\x0c' : '\x1c';  // none, or one
  append(file, footer.arrow_schema);
  file += '\0';
  const auto length = static_cast<std::uint32_t>(file.size() - 4);
  for (int shift = 0; shift < 32; shift += 8) file += static_cast<char>(length >> shift);
  return file + "PAR1";
}

}  // namespace dpiframe::parquet
