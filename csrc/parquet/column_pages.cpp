#include "parquet/column_pages.h"

#include <algorithm>

#include "codec/decompress.h"
#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/file.h"
#include "parquet/page_lister.h"
#include "parquet/unit_chunks.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kLongPage = 128 << 10;

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

// Compressed pages of more than so many bytes, the longest first.
std::vector<Page*> pages_above(ColumnPages& found, std::int64_t bytes) {
  std::vector<Page*> pages;
  for (Page& page : found.pages)
    if (page.codec != Codec::kNone && page.uncompressed_bytes > bytes) pages.push_back(&page);
  std::ranges::stable_sort(pages, std::ranges::greater{}, &Page::uncompressed_bytes);
  return pages;
}

}  // namespace

std::int64_t long_page(const ColumnPages& found, std::int64_t least) {
  constexpr std::int64_t kTimesMean = 4;
  const std::int64_t mean =
      found.uncompressed_bytes / std::max<std::int64_t>(1, std::ssize(found.pages));
  return std::max(least, kTimesMean * mean);
}

void unpack_pages(ColumnPages& found, std::span<std::uint8_t> bytes, std::int64_t above) {
  for (Page* page : pages_above(found, above)) {
    const std::int64_t at = aligned_page(found.compressed_bytes);
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
    page.levels_at += at;
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
  return bytes_of(unit_chunks(file, names, first, stop)) + static_cast<std::int64_t>(kPagePadding);
}

std::int64_t unpacked_bytes(const File& file, const std::vector<std::string>& names,
                            std::size_t first, std::size_t stop) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // a footer may claim anything
  std::int64_t bytes = 0;
  for (const UnitChunk& unit_chunk : unit_chunks(file, names, first, stop))
    if (const ColumnChunk& chunk = *unit_chunk.chunk; chunk.codec != Codec::kNone)
      bytes = std::min(kMost, bytes + std::clamp<std::int64_t>(chunk.uncompressed_bytes, 0, kMost));
  return bytes;
}

ColumnPages read_pages(const File& file, const std::vector<std::string>& names, std::size_t first,
                       std::size_t stop, std::span<std::uint8_t> bytes,
                       std::optional<std::int64_t> unpack_above) {
  ColumnPages found;
  found.rows = file.rows(first, stop);
  found.columns = static_cast<int>(names.size());
  found.number_bytes = number_bytes(file, names, first, stop);
  const std::vector<UnitChunk> chunks = unit_chunks(file, names, first, stop);
  found.compressed_bytes = bytes_of(chunks);
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
  unpack_pages(found, bytes.first(room), unpack_above.value_or(long_page(found, kLongPage)));
  return found;
}

}  // namespace dpiframe::parquet
