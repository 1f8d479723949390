#include "parquet/page_lister.h"

#include <algorithm>

#include "codec/crc32.h"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kBehindPage = 16;  // bytes that may be read

}  // namespace

void PageLister::add(const UnitChunk& unit_chunk, std::int64_t most_of_value) {
  chunk_ = &unit_chunk;
  dictionary_ = -1;
  std::int64_t at = unit_chunk.at, row = unit_chunk.row;
  const std::int64_t end = unit_chunk.at + unit_chunk.chunk->bytes,
                     stop = unit_chunk.row + unit_chunk.rows;
  while (row < stop) {
    const PageHeader header = read_page_header(bytes_.subspan(at, end - at), most_of_value);
    at += static_cast<std::int64_t>(header.header_bytes);
    const Bytes stored = bytes_.subspan(at, header.bytes);
    DPIF_CHECK(!header.crc.has_value() || crc32(stored) == *header.crc,
               "a page's checksum is wrong");
    if (header.type == PageType::kDictionary) {
      check_dictionary_size(header, unit_chunk.rows);
      DPIF_CHECK(dictionary_ < 0, "a column has two dictionaries");
      DPIF_CHECK(
          header.encoding == Encoding::kPlain || header.encoding == Encoding::kPlainDictionary,
          "a dictionary of encoding ", static_cast<int>(header.encoding));
      add_dictionary(header, at);
    } else if (header.type == PageType::kData || header.type == PageType::kDataV2) {
      DPIF_CHECK(header.num_values <= stop - row, "a page of ", header.num_values, " values where ",
                 stop - row, " are left");
      if (header.num_values > 0) add_data(header, at, row);
      row += header.num_values;
    }
    at += header.bytes;
  }
}

void PageLister::add_dictionary(const PageHeader& header, std::int64_t at) {
  Page page = page_of(header, at, chunk_->row, header.num_values);
  page.kind = PageKind::kDictionary;
  check_numbers(page, header.num_values);
  dictionary_ = static_cast<std::int32_t>(found_.pages.size());
  take(page, true);
}

void PageLister::add_data(const PageHeader& header, std::int64_t at, std::int64_t row) {
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

Page PageLister::page_of(const PageHeader& header, std::int64_t at, std::int64_t row,
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
void PageLister::pass_levels(const PageHeader& header, Page& page) const {
  const auto size = static_cast<std::int32_t>(header.level_bytes);
  const Bytes levels = bytes_.subspan(page.compressed_at, size).subspan(header.repetition_bytes);
  DPIF_CHECK(header.num_nulls == 0 && (!chunk_->optional || all_present(levels, page.values)),
             "there are nulls");
  page.compressed_at += size;
  page.compressed_bytes -= size;
  page.uncompressed_bytes -= size;
}

void PageLister::check_numbers(const Page& page, std::int64_t count) const {
  DPIF_CHECK(count <= page.uncompressed_bytes / found_.number_bytes, "a page of ", count,
             " numbers has only ", page.uncompressed_bytes, " bytes");
}

void PageLister::take(Page& page, bool compressed) {
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
    found_.uncompressed_bytes += aligned_page(room);
  }
  found_.pages.push_back(page);
  found_.check_memory();
}

}  // namespace dpiframe::parquet
