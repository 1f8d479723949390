#include "parquet/page_reader.h"

#include <algorithm>
#include <cstring>

#include "codec/crc32.h"
#include "codec/decompress.h"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

// Takes the levels of a page of version 1 from its bytes: their length in 4 bytes, then they
// themselves.
Bytes take_levels(Bytes& page, Encoding encoding) {
  DPIF_CHECK(encoding == Encoding::kRle, "levels of encoding ", static_cast<int>(encoding));
  std::uint32_t size = 0;
  DPIF_CHECK(page.size() >= sizeof(size), "a page is cut off in its levels");
  std::memcpy(&size, page.data(), sizeof(size));
  page = page.subspan(sizeof(size));
  DPIF_CHECK(size <= page.size(), "a page is cut off in its levels");
  const Bytes levels = page.first(size);
  page = page.subspan(size);
  return levels;
}

}  // namespace

void PageReader::open(Bytes chunk, const ChunkForm& form) {
  chunk_ = chunk, form_ = form;
  left_ = form.values, has_dictionary_ = false;
}

PageContents PageReader::next() {
  while (true) {
    PageContents page{read_page_header(chunk_, form_.most_of_value), {}, {}, {}};
    const PageHeader& header = page.header;
    const Bytes stored = chunk_.subspan(header.header_bytes, header.bytes);
    chunk_ = chunk_.subspan(header.header_bytes + header.bytes);
    DPIF_CHECK(!header.crc.has_value() || crc32(stored) == *header.crc,
               "a page's checksum is wrong");
    if (header.type == PageType::kDictionary) {
      take_dictionary(page, stored);
      return page;
    }
    if (header.type != PageType::kData && header.type != PageType::kDataV2) continue;
    DPIF_CHECK(header.num_values <= left_, "a page of ", header.num_values, " values where ", left_,
               " are left");
    if (header.num_values == 0) continue;
    left_ -= header.num_values;
    take_data(page, stored);
    return page;
  }
}

void PageReader::take_dictionary(PageContents& page, Bytes stored) {
  const PageHeader& header = page.header;
  check_dictionary_size(header, std::min(form_.values, form_.most_distinct));
  DPIF_CHECK(!has_dictionary_, "a column has two dictionaries");
  DPIF_CHECK(header.encoding == Encoding::kPlain || header.encoding == Encoding::kPlainDictionary,
             "a dictionary of encoding ", static_cast<int>(header.encoding));
  page.values = uncompressed_page(form_.codec, stored, header.uncompressed_bytes, page_);
  has_dictionary_ = true;
}

void PageReader::take_data(PageContents& page, Bytes stored) {
  const PageHeader& header = page.header;
  if (header.type == PageType::kDataV2) {
    const Bytes levels = stored.first(header.level_bytes);
    page.repetition = levels.first(header.repetition_bytes);
    page.definition = levels.subspan(header.repetition_bytes);
    page.values = uncompressed_page(header.compressed ? form_.codec : Codec::kNone,
                                    stored.subspan(header.level_bytes),
                                    header.uncompressed_bytes - header.level_bytes, page_);
    return;
  }
  page.values = uncompressed_page(form_.codec, stored, header.uncompressed_bytes, page_);
  if (form_.repeated) page.repetition = take_levels(page.values, header.repetition_levels);
  if (form_.optional) page.definition = take_levels(page.values, header.levels);
}

Bytes uncompressed_page(Codec codec, Bytes stored, std::int64_t size, ScratchBytes& memory) {
  if (codec == Codec::kNone) {
    DPIF_CHECK(static_cast<std::int64_t>(stored.size()) == size, "a page of ", stored.size(),
               " bytes that is not compressed should have ", size);
    return stored;
  }
  check_ratio(codec, static_cast<std::int64_t>(stored.size()), size);
  const std::span<std::uint8_t> page = memory.take(size + kPagePadding).first(size);
  // An empty page of version 2 may be stored as nothing at all.
  if (size > 0 || !stored.empty()) decompress(codec, stored, page);
  return page;
}

}  // namespace dpiframe::parquet
