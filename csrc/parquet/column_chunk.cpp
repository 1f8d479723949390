#include "parquet/column_chunk.h"

#include <algorithm>
#include <cstring>

#include "codec/crc32.h"
#include "codec/decompress.h"
#include "common/streaming_copy.h"

namespace dpiframe::parquet {
namespace {

// Steps over the levels of a page of version 1: their length in 4 bytes, then they themselves.
Bytes behind_levels(Bytes page, const PageHeader& header) {
  DPIF_CHECK(header.levels == Encoding::kRle, "levels of encoding ",
             static_cast<int>(header.levels));
  std::uint32_t size = 0;
  DPIF_CHECK(page.size() >= sizeof(size), "a page is cut off in its levels");
  std::memcpy(&size, page.data(), sizeof(size));
  page = page.subspan(sizeof(size));
  DPIF_CHECK(size <= page.size(), "a page is cut off in its levels");
  DPIF_CHECK(all_present(page.first(size), header.num_values), "there are nulls");
  return page.subspan(size);
}

// Values of a dictionary page are put together in a cache and then copied past it, but for pages
// that no cache would hold.
constexpr std::size_t kStagedBytes = 512 << 10;

template <class Number>
void check_plain(Bytes values, std::span<Number> out) {
  DPIF_CHECK(values.size() >= out.size_bytes(), "a page of ", out.size(), " numbers has only ",
             values.size(), " bytes");
}

}  // namespace

template <class Number>
void ColumnChunkReader<Number>::read(Bytes chunk, Codec codec, bool optional,
                                     std::span<Number> out) {
  codec_ = codec, optional_ = optional, has_dictionary_ = false;
  dictionary_.clear();  // that of the chunk before
  const std::int64_t rows = std::ssize(out);
  while (!out.empty()) {
    const PageHeader page = read_page_header(chunk);
    const Bytes stored = chunk.subspan(page.header_bytes, page.bytes);
    chunk = chunk.subspan(page.header_bytes + page.bytes);
    DPIF_CHECK(!page.crc.has_value() || crc32(stored) == *page.crc, "a page's checksum is wrong");
    if (page.type == PageType::kDictionary) {
      check_dictionary_size(page, rows);
      read_dictionary(page, stored);
    } else if (page.type == PageType::kData || page.type == PageType::kDataV2) {
      DPIF_CHECK(page.num_values <= static_cast<std::int64_t>(out.size()), "a page of ",
                 page.num_values, " values where ", out.size(), " are left");
      if (page.num_values > 0) read_data(page, stored, out.first(page.num_values));
      out = out.subspan(page.num_values);
    }
  }
}

template <class Number>
void ColumnChunkReader<Number>::trim() {
  page_.trim();
  if (dictionary_.capacity() * sizeof(Number) > kKeptBytes) dictionary_ = {};
}

template <class Number>
void ColumnChunkReader<Number>::read_dictionary(const PageHeader& page, Bytes stored) {
  DPIF_CHECK(!has_dictionary_, "a column has two dictionaries");
  DPIF_CHECK(page.encoding == Encoding::kPlain || page.encoding == Encoding::kPlainDictionary,
             "a dictionary of encoding ", static_cast<int>(page.encoding));
  constexpr std::int64_t kNumberBytes = sizeof(Number);
  DPIF_CHECK(page.num_values <= page.uncompressed_bytes / kNumberBytes, "a dictionary of ",
             page.num_values, " numbers has only ", page.uncompressed_bytes, " bytes");
  const Bytes values = uncompressed(stored, page.uncompressed_bytes, true);
  dictionary_.resize(page.num_values);
  check_plain(values, std::span<Number>(dictionary_));
  if (!dictionary_.empty())
    std::memcpy(dictionary_.data(), values.data(), sizeof(Number) * dictionary_.size());
  has_dictionary_ = true;
}

template <class Number>
void ColumnChunkReader<Number>::read_data(const PageHeader& page, Bytes stored,
                                          std::span<Number> out) {
  if (page.type == PageType::kDataV2) {
    const Bytes levels = stored.first(page.level_bytes).subspan(page.repetition_bytes);
    DPIF_CHECK(page.num_nulls == 0 && (!optional_ || all_present(levels, page.num_values)),
               "there are nulls");
    const Bytes values = uncompressed(stored.subspan(page.level_bytes),
                                      page.uncompressed_bytes - page.level_bytes, page.compressed);
    return read_values(page.encoding, values, out);
  }
  const Bytes values = uncompressed(stored, page.uncompressed_bytes, true);
  read_values(page.encoding, optional_ ? behind_levels(values, page) : values, out);
}

template <class Number>
void ColumnChunkReader<Number>::read_values(Encoding encoding, Bytes values,
                                            std::span<Number> out) {
  if (encoding == Encoding::kPlain) {
    check_plain(values, out);
    return copy_past_caches(out.data(), values.data(), out.size_bytes());
  }
  DPIF_CHECK(encoding == Encoding::kRleDictionary || encoding == Encoding::kPlainDictionary,
             "values of encoding ", static_cast<int>(encoding));
  const std::span<const Number> dictionary(dictionary_);
  if (out.size_bytes() > kStagedBytes) return decode_dictionary_values(values, dictionary, out);
  staged_.resize(std::max(staged_.size(), out.size()));
  decode_dictionary_values(values, dictionary, std::span(staged_).first(out.size()));
  copy_past_caches(out.data(), staged_.data(), out.size_bytes());
}

template <class Number>
Bytes ColumnChunkReader<Number>::uncompressed(Bytes stored, std::int64_t size, bool compressed) {
  if (!compressed || codec_ == Codec::kNone) {
    DPIF_CHECK(static_cast<std::int64_t>(stored.size()) == size, "a page of ", stored.size(),
               " bytes that is not compressed should have ", size);
    return stored;
  }
  check_ratio(codec_, static_cast<std::int64_t>(stored.size()), size);
  const std::span<std::uint8_t> page = page_.take(size + kPagePadding).first(size);
  // An empty page of version 2 may be stored as nothing at all.
  if (size > 0 || !stored.empty()) decompress(codec_, stored, page);
  return page;
}

template class ColumnChunkReader<std::int32_t>;
template class ColumnChunkReader<std::int64_t>;

}  // namespace dpiframe::parquet
