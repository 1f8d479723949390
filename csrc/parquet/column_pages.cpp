#include "parquet/column_pages.h"

#include <algorithm>

#include "codec/crc32.h"
#include "codec/decompress.h"
#include "parquet/file.h"
#include "parquet/metadata/page_header.h"
#include "parquet/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kAlignment = 16;   // of a decompressed page
constexpr std::int64_t kBehindPage = 16;  // bytes that may be read

// A chunk, and where it goes.
struct UnitChunk {
  const ColumnChunk* chunk;
  std::size_t group;
  std::size_t name;
  bool optional;
  std::int64_t row;  // of its first value in the unit
  std::int64_t rows;
  std::int64_t at;  // of its first byte among the unit's
};

std::string place_of(const UnitChunk& unit_chunk, const std::vector<std::string>& names) {
  return join_message("row group ", unit_chunk.group, ", column ", names[unit_chunk.name], ": ");
}

int number_bytes(const File& file, const std::vector<std::string>& names, std::size_t first,
                 std::size_t stop) {
  DPIF_CHECK(!names.empty(), "no columns");
  int bytes = 0;
  for (const std::string& name : names) {
    const Column* column = file.feature(name, first, stop);
    DPIF_CHECK(column != nullptr && !is_uint32(*column) && !file.has_nulls(*column, first, stop),
               "column ", name, " cannot be read here");
    const int own = bytes_of(column->type);
    DPIF_CHECK(bytes == 0 || bytes == own, "column ", name, " has numbers of ", own,
               " bytes, those before it of ", bytes);
    bytes = own;
  }
  return bytes;
}

// Chunks of a file never share bytes. Those of a damaged footer may, or lie behind the end, and
// would together ask for many times the file's size of page-locked memory.
void check_offsets(const std::vector<UnitChunk>& chunks, const std::vector<std::string>& names,
                   std::int64_t size) {
  std::vector<const UnitChunk*> by_offset;
  for (const UnitChunk& unit_chunk : chunks) {
    const ColumnChunk& chunk = *unit_chunk.chunk;
    DPIF_CHECK(chunk.begin <= size && chunk.bytes <= size - chunk.begin,
               place_of(unit_chunk, names), "it lies behind the end of the file");
    by_offset.push_back(&unit_chunk);
  }
  std::ranges::sort(by_offset, {},
                    [](const UnitChunk* unit_chunk) { return unit_chunk->chunk->begin; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const ColumnChunk& before = *by_offset[i - 1]->chunk;
    const ColumnChunk& chunk = *by_offset[i]->chunk;
    if (&chunk == &before) continue;  // a column that is asked for twice
    DPIF_CHECK(chunk.begin - before.begin >= before.bytes, place_of(*by_offset[i], names),
               "it shares bytes with column ", names[by_offset[i - 1]->name], " of row group ",
               by_offset[i - 1]->group);
  }
}

// All chunks, those of a row group as they lie in the file.
std::vector<UnitChunk> chunks_of(const File& file, const std::vector<std::string>& names,
                                 std::size_t first, std::size_t stop) {
  std::vector<UnitChunk> chunks;
  std::int64_t row = 0, at = 0;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    const auto begin = static_cast<std::ptrdiff_t>(chunks.size());
    for (std::size_t n = 0; n < names.size() && group.rows > 0; ++n) {
      const Column& column = file.footer().columns.find(names[n])->second;
      chunks.push_back({&group.chunks[column.leaf], g, n, column.optional, row, group.rows, 0});
    }
    std::ranges::sort(chunks.begin() + begin, chunks.end(), {},
                      [](const UnitChunk& unit_chunk) { return unit_chunk.chunk->begin; });
    row += group.rows;
  }
  check_offsets(chunks, names, file.bytes().size());
  for (UnitChunk& unit_chunk : chunks) {
    const ColumnChunk& chunk = *unit_chunk.chunk;
    DPIF_CHECK(chunk.codec == Codec::kNone || std::ranges::count(kGpuCodecs, chunk.codec) > 0,
               place_of(unit_chunk, names), "pages of codec ", static_cast<int>(chunk.codec),
               " are not unpacked on a GPU");
    DPIF_CHECK(chunk.bytes <= INT64_MAX / 2 - at, place_of(unit_chunk, names), "too many bytes");
    unit_chunk.at = at;
    at += chunk.bytes;
  }
  return chunks;
}

std::int64_t size_of(const std::vector<UnitChunk>& chunks) {
  return chunks.empty() ? 0 : chunks.back().at + chunks.back().chunk->bytes;
}

// Chunks that lie one behind the other are read at once.
void read_chunks(const FileBytes& file, const std::vector<UnitChunk>& chunks,
                 std::span<std::uint8_t> bytes) {
  for (auto next = chunks.begin(); next != chunks.end();) {
    const auto first = next;
    std::int64_t end = first->chunk->begin;
    for (; next != chunks.end() && next->chunk->begin == end; ++next) end += next->chunk->bytes;
    file.read(first->chunk->begin, bytes.subspan(first->at, end - first->chunk->begin));
  }
}

// Lists the pages of chunks.
class PageLister {
 public:
  PageLister(ColumnPages& found, std::span<const std::uint8_t> bytes)
      : found_(found), bytes_(bytes) {}

  void add(const UnitChunk& unit_chunk) {
    chunk_ = &unit_chunk;
    dictionary_ = -1;
    std::int64_t at = unit_chunk.at, row = unit_chunk.row;
    const std::int64_t end = unit_chunk.at + unit_chunk.chunk->bytes,
                       stop = unit_chunk.row + unit_chunk.rows;
    while (row < stop) {
      const PageHeader header = read_page_header(bytes_.subspan(at, end - at));
      at += static_cast<std::int64_t>(header.header_bytes);
      const Bytes stored = bytes_.subspan(at, header.bytes);
      DPIF_CHECK(!header.crc.has_value() || crc32(stored) == *header.crc,
                 "a page's checksum is wrong");
      if (header.type == PageType::kDictionary) {
        check_dictionary_size(header, unit_chunk.rows);
        add_dictionary(header, at);
      } else if (header.type == PageType::kData || header.type == PageType::kDataV2) {
        DPIF_CHECK(header.num_values <= stop - row, "a page of ", header.num_values,
                   " values where ", stop - row, " are left");
        if (header.num_values > 0) add_data(header, at, row);
        row += header.num_values;
      }
      at += header.bytes;
    }
  }

 private:
  void add_dictionary(const PageHeader& header, std::int64_t at) {
    DPIF_CHECK(dictionary_ < 0, "a column has two dictionaries");
    DPIF_CHECK(header.encoding == Encoding::kPlain || header.encoding == Encoding::kPlainDictionary,
               "a dictionary of encoding ", static_cast<int>(header.encoding));
    Page page = page_of(header, at, chunk_->row, header.num_values);
    page.kind = PageKind::kDictionary;
    check_numbers(page, header.num_values);
    dictionary_ = static_cast<std::int32_t>(found_.pages.size());
    take(page, true);
  }

  void add_data(const PageHeader& header, std::int64_t at, std::int64_t row) {
    Page page = page_of(header, at, row, header.num_values);
    if (header.type == PageType::kDataV2)
      pass_levels(header, page);
    else if (chunk_->optional)
      page.levels = true;
    DPIF_CHECK(!page.levels || header.levels == Encoding::kRle, "levels of encoding ",
               static_cast<int>(header.levels));
    if (header.encoding == Encoding::kPlain) {
      page.kind = PageKind::kPlain;
      check_numbers(page, header.num_values);
    } else if (header.encoding == Encoding::kDeltaBinaryPacked) {
      page.kind = PageKind::kDelta;
    } else if (header.encoding == Encoding::kByteStreamSplit) {
      page.kind = PageKind::kSplit;
      check_numbers(page, header.num_values);
    } else {
      DPIF_CHECK(header.encoding == Encoding::kRleDictionary ||
                     header.encoding == Encoding::kPlainDictionary,
                 "values of encoding ", static_cast<int>(header.encoding));
      DPIF_CHECK(page.values == 0 || (dictionary_ >= 0 && found_.pages[dictionary_].values > 0),
                 "a page refers to a dictionary that is missing or empty");
      page.kind = PageKind::kIndices;
      page.dictionary = dictionary_;
    }
    take(page, header.type == PageType::kData || header.compressed);
  }

  Page page_of(const PageHeader& header, std::int64_t at, std::int64_t row,
               std::int64_t values) const {
    DPIF_CHECK(std::max({header.bytes, header.uncompressed_bytes, values}) <= kMaxPageSize,
               "a page of ", header.bytes, " bytes, unpacked ", header.uncompressed_bytes, ", and ",
               values, " values; only up to ", kMaxPageSize, " can be unpacked on a GPU");
    Page page{};
    page.compressed_at = at;
    page.row = row;
    page.compressed_bytes = static_cast<std::int32_t>(header.bytes);
    page.uncompressed_bytes = static_cast<std::int32_t>(header.uncompressed_bytes);
    page.values = static_cast<std::int32_t>(values);
    page.column = static_cast<std::int32_t>(chunk_->name);
    page.dictionary = -1;
    return page;
  }

  // Those of version 2, which are never compressed.
  void pass_levels(const PageHeader& header, Page& page) const {
    const auto size = static_cast<std::int32_t>(header.level_bytes);
    const Bytes levels = bytes_.subspan(page.compressed_at, size).subspan(header.repetition_bytes);
    DPIF_CHECK(header.num_nulls == 0 && (!chunk_->optional || all_present(levels, page.values)),
               "there are nulls");
    page.compressed_at += size;
    page.compressed_bytes -= size;
    page.uncompressed_bytes -= size;
  }

  void check_numbers(const Page& page, std::int64_t count) const {
    DPIF_CHECK(count <= page.uncompressed_bytes / found_.number_bytes, "a page of ", count,
               " numbers has only ", page.uncompressed_bytes, " bytes");
  }

  void take(Page& page, bool compressed) {
    // An empty page of version 2 may be found as nothing at all.
    if (compressed && (page.compressed_bytes > 0 || page.uncompressed_bytes > 0))
      page.codec = chunk_->chunk->codec;
    DPIF_CHECK(page.codec != Codec::kNone || page.compressed_bytes == page.uncompressed_bytes,
               "a page of ", page.compressed_bytes, " bytes that is not compressed should have ",
               page.uncompressed_bytes);
    if (page.codec != Codec::kNone) {
      check_ratio(page.codec, page.compressed_bytes, page.uncompressed_bytes);
      page.uncompressed_at = found_.uncompressed_bytes;
      const std::int64_t room = page.uncompressed_bytes + kBehindPage;
      found_.uncompressed_bytes += (room + kAlignment - 1) / kAlignment * kAlignment;
    }
    found_.pages.push_back(page);
    found_.check_memory();
  }

  ColumnPages& found_;
  std::span<const std::uint8_t> bytes_;
  const UnitChunk* chunk_ = nullptr;
  std::int32_t dictionary_ = -1;  // that of the chunk
};

// The pages that a GPU would still decompress when it is done with all others, the longest first.
std::vector<Page*> long_pages(ColumnPages& found) {
  constexpr std::int64_t kLeast = 128 << 10, kTimesMean = 4;
  const std::int64_t mean =
      found.uncompressed_bytes / std::max<std::int64_t>(1, std::ssize(found.pages));
  std::vector<Page*> pages;
  for (Page& page : found.pages)
    if (page.codec != Codec::kNone && page.uncompressed_bytes > std::max(kLeast, kTimesMean * mean))
      pages.push_back(&page);
  std::ranges::stable_sort(pages, std::ranges::greater{}, &Page::uncompressed_bytes);
  return pages;
}

// Decompresses long pages into what room there is behind the chunks. A corrupt one stays as it is,
// for the GPU to find.
void unpack_long_pages(ColumnPages& found, std::span<std::uint8_t> bytes) {
  for (Page* page : long_pages(found)) {
    const std::int64_t at = (found.compressed_bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (at + page->uncompressed_bytes > std::ssize(bytes)) continue;
    try {
      decompress(page->codec, bytes.subspan(page->compressed_at, page->compressed_bytes),
                 bytes.subspan(at, page->uncompressed_bytes));
    } catch (const std::invalid_argument&) {
      continue;
    }
    page->codec = Codec::kNone;
    page->compressed_at = at;
    page->compressed_bytes = page->uncompressed_bytes;
    found.compressed_bytes = at + page->uncompressed_bytes;
  }
}

}  // namespace

void ColumnPages::check_memory() const {
  constexpr std::int64_t kFewPages = 1 << 16, kPageBytes = 64;
  DPIF_CHECK(std::ssize(pages) <= kFewPages + compressed_bytes / kPageBytes, "more than ",
             pages.size() - 1, " pages in ", compressed_bytes, " bytes");
  constexpr std::int64_t kFewBytes = 32 << 20, kTimes = 4;
  const std::int64_t row_bytes = std::int64_t{columns} * number_bytes;
  DPIF_CHECK((uncompressed_bytes - kFewBytes) / (kTimes * row_bytes) <= rows,
             "pages that unpack to ", uncompressed_bytes, " bytes for ", rows, " rows of ",
             row_bytes);
}

void ColumnPages::append(const ColumnPages& file, std::int64_t at) {
  DPIF_CHECK(file.columns == columns && file.number_bytes == number_bytes, "pages of ",
             file.columns, " columns of ", file.number_bytes, " bytes behind those of ", columns,
             " of ", number_bytes);
  DPIF_CHECK(at >= compressed_bytes, "pages at ", at, " among the ", compressed_bytes,
             " bytes of those before");
  const auto before = static_cast<std::int32_t>(pages.size());
  for (Page page : file.pages) {
    page.compressed_at += at;
    page.uncompressed_at += uncompressed_bytes;
    page.row += rows;
    if (page.dictionary >= 0) page.dictionary += before;
    pages.push_back(page);
  }
  rows += file.rows;
  compressed_bytes = at + file.compressed_bytes;
  uncompressed_bytes += file.uncompressed_bytes;
  check_memory();
}

std::int64_t pages_bytes(const File& file, const std::vector<std::string>& names, std::size_t first,
                         std::size_t stop) {
  (void)number_bytes(file, names, first, stop);
  return size_of(chunks_of(file, names, first, stop)) + static_cast<std::int64_t>(kPagePadding);
}

ColumnPages read_pages(const File& file, const std::vector<std::string>& names, std::size_t first,
                       std::size_t stop, std::span<std::uint8_t> bytes) {
  ColumnPages found;
  found.rows = file.rows(first, stop);
  found.columns = static_cast<int>(names.size());
  found.number_bytes = number_bytes(file, names, first, stop);
  const std::vector<UnitChunk> chunks = chunks_of(file, names, first, stop);
  found.compressed_bytes = size_of(chunks);
  const auto room = static_cast<std::int64_t>(bytes.size() - std::min(bytes.size(), kPagePadding));
  DPIF_CHECK(found.compressed_bytes <= room, "memory of ", bytes.size(), " bytes for columns of ",
             found.compressed_bytes, " and a padding of ", kPagePadding);
  read_chunks(file.bytes(), chunks, bytes);
  PageLister list(found, bytes);
  for (const UnitChunk& unit_chunk : chunks) {
    try {
      list.add(unit_chunk);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, place_of(unit_chunk, names), error.what());
    }
  }
  unpack_long_pages(found, bytes.first(room));
  return found;
}

}  // namespace dpiframe::parquet
