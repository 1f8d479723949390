#include "parquet/metadata/page_header.h"

#include <algorithm>

namespace dpiframe::parquet {
namespace {

using Type = CompactReader::Type;

bool is_integer(Type type) {
  return type == Type::kI16 || type == Type::kI32 || type == Type::kI64;
}

// Data pages of version 1, and dictionary pages, whose fields are the first two of these.
void read_data_header(CompactReader& reader, PageHeader& page) {
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 1 && is_integer(type))
      page.num_values = reader.integer();
    else if (id == 2 && is_integer(type))
      page.encoding = static_cast<Encoding>(reader.integer());
    else if (id == 3 && is_integer(type))
      page.levels = static_cast<Encoding>(reader.integer());
    else if (id == 4 && is_integer(type))
      page.repetition_levels = static_cast<Encoding>(reader.integer());
    else
      reader.skip(type);
  });
}

void read_data_header_v2(CompactReader& reader, PageHeader& page) {
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 7 && (type == Type::kTrue || type == Type::kFalse)) {
      page.compressed = type == Type::kTrue;
    } else if (id < 1 || id > 6 || !is_integer(type)) {
      reader.skip(type);
    } else {
      const std::int64_t value = reader.integer();
      DPIF_CHECK(value >= 0 && value <= INT32_MAX, "a page header holds ", value);
      if (id == 1) page.num_values = value;
      if (id == 2) page.num_nulls = value;
      if (id == 4) page.encoding = static_cast<Encoding>(value);
      if (id == 5 || id == 6) page.level_bytes += value;
      if (id == 6) page.repetition_bytes = value;
    }
  });
}

// A header that lies about these would ask for memory that the page's bytes do not justify.
void check_sizes(const PageHeader& page, std::int64_t most_of_value) {
  DPIF_CHECK(page.num_values >= 0 && page.num_values <= INT32_MAX, "a page of ", page.num_values,
             " values");
  DPIF_CHECK(page.uncompressed_bytes <= most_of_value * page.num_values + kMostBeside, "a page of ",
             page.num_values, " values that unpacks to ", page.uncompressed_bytes, " bytes");
}

// The field that holds the header of a page of this type, 0 where none is needed.
std::int64_t own_header(PageType type) {
  switch (type) {
    case PageType::kData:
      return 5;
    case PageType::kDictionary:
      return 7;
    case PageType::kDataV2:
      return 8;
    default:
      return 0;
  }
}

}  // namespace

PageHeader read_page_header(Bytes bytes, std::int64_t most_of_value) {
  CompactReader reader(bytes);
  PageHeader page;
  page.bytes = page.uncompressed_bytes = page.num_values = -1;
  std::int64_t own = 0;
  reader.fields([&](std::int64_t id, Type type) {
    if (type == Type::kStruct && (id == 5 || id == 7 || id == 8)) own = id;
    if (id == 1 && is_integer(type))
      page.type = static_cast<PageType>(reader.integer());
    else if (id == 2 && is_integer(type))
      page.uncompressed_bytes = reader.integer();
    else if (id == 3 && is_integer(type))
      page.bytes = reader.integer();
    else if (id == 4 && is_integer(type))
      page.crc = static_cast<std::uint32_t>(reader.integer());
    else if ((id == 5 || id == 7) && type == Type::kStruct)
      read_data_header(reader, page);
    else if (id == 8 && type == Type::kStruct)
      read_data_header_v2(reader, page);
    else
      reader.skip(type);
  });
  const std::int64_t wanted = own_header(page.type);
  DPIF_CHECK(wanted == 0 || wanted == own, "a page of type ", static_cast<int>(page.type),
             " with the header of another one");
  page.header_bytes = reader.at();
  const auto left = static_cast<std::int64_t>(bytes.size() - reader.at());
  DPIF_CHECK(page.bytes >= 0 && page.bytes <= left, "a page of ", page.bytes, " bytes, but ", left,
             " are left of its column");
  DPIF_CHECK(page.uncompressed_bytes >= 0 && page.uncompressed_bytes <= INT32_MAX,
             "a page that unpacks to ", page.uncompressed_bytes, " bytes");
  if (wanted != 0) check_sizes(page, most_of_value);
  DPIF_CHECK(page.level_bytes <= page.bytes && page.level_bytes <= page.uncompressed_bytes,
             "levels of ", page.level_bytes, " bytes in a page of ", page.bytes);
  return page;
}

// A dictionary holds a value once, so that it has no more of them than its chunk. Zeros in zstd
// give 32,768 times their bytes: one that lies, in a file of 10 KB, would take 300 MB.
void check_dictionary_size(const PageHeader& page, std::int64_t rows) {
  constexpr std::int64_t kFew = 1 << 16;  // small enough for any writer to keep some too many
  DPIF_CHECK(page.num_values <= std::max(rows, kFew), "a dictionary of ", page.num_values,
             " values, but its column chunk has only ", rows,
             ": it would unpack to more than these need");
}

void check_ratio(Codec codec, std::int64_t compressed_bytes, std::int64_t uncompressed_bytes) {
  DPIF_CHECK(uncompressed_bytes <= most_decompressed(codec, compressed_bytes), "a page of ",
             compressed_bytes, " bytes that claims to unpack to ", uncompressed_bytes);
}

}  // namespace dpiframe::parquet
