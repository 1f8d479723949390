#include "parquet/column_chunk.h"

#include <algorithm>
#include <cstring>

#include "common/streaming_copy.h"
#include "parquet/encodings/byte_stream_split.cuh"
#include "parquet/encodings/delta_binary_packed.cuh"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

// Values of a dictionary page are put together in a cache and then copied past it, but for pages
// that no cache would hold.
constexpr std::size_t kStagedBytes = 512 << 10;

template <class Number>
void check_plain(Bytes values, std::span<Number> out) {
  DPIF_CHECK(values.size() >= out.size_bytes(), "a page of ", out.size(), " numbers has only ",
             values.size(), " bytes");
}

// Moves the values, which are at the front, to the rows of those that are no nulls.
template <class Number>
void spread(std::span<Number> out, std::span<const std::int64_t> nulls, std::int64_t first_row) {
  std::size_t from = out.size() - nulls.size();
  for (std::size_t to = out.size(), left = nulls.size(); left > 0;) {
    --to;
    if (nulls[left - 1] - first_row == static_cast<std::int64_t>(to))
      out[to] = 0, --left;
    else
      out[to] = out[--from];
  }
}

// In an encoding whose decoder a GPU runs as well.
template <class Number>
void decode_as_gpu(Encoding encoding, Bytes values, std::span<Number> out) {
  DPIF_CHECK(values.size() <= kMaxPageSize, "a page of ", values.size(), " bytes; at most are ",
             kMaxPageSize);
  const pages::PageBytes bytes{values.data(), static_cast<std::int32_t>(values.size())};
  const auto count = static_cast<std::int32_t>(out.size());
  const bool good = encoding == Encoding::kDeltaBinaryPacked
                        ? pages::decode_delta(bytes, count, out.data())
                        : pages::decode_split(bytes, count, out.data());
  DPIF_CHECK(good, "a page of ", out.size(), " values of encoding ", static_cast<int>(encoding),
             " is corrupt");
}

}  // namespace

template <class Number>
void NumberDecoder<Number>::take_dictionary(const PageContents& page) {
  constexpr std::int64_t kNumberBytes = sizeof(Number);
  DPIF_CHECK(page.header.num_values <= page.header.uncompressed_bytes / kNumberBytes,
             "a dictionary of ", page.header.num_values, " numbers has only ",
             page.header.uncompressed_bytes, " bytes");
  dictionary_.resize(page.header.num_values);
  if (!dictionary_.empty())
    std::memcpy(dictionary_.data(), page.values.data(), sizeof(Number) * dictionary_.size());
}

template <class Number>
void NumberDecoder<Number>::decode(const PageContents& page, std::span<Number> out) const {
  const Encoding encoding = page.header.encoding;
  if (encoding == Encoding::kPlain) {
    check_plain(page.values, out);
    if (!out.empty()) std::memcpy(out.data(), page.values.data(), out.size_bytes());
    return;
  }
  if (encoding == Encoding::kDeltaBinaryPacked || encoding == Encoding::kByteStreamSplit)
    return decode_as_gpu(encoding, page.values, out);
  DPIF_CHECK(encoding == Encoding::kRleDictionary || encoding == Encoding::kPlainDictionary,
             "values of encoding ", static_cast<int>(encoding));
  decode_dictionary_values(page.values, std::span<const Number>(dictionary_), out);
}

template <class Number>
void NumberDecoder<Number>::trim() {
  if (dictionary_.capacity() * sizeof(Number) > kKeptBytes) dictionary_ = {};
}

template <class Number>
void ColumnChunkReader<Number>::read(Bytes chunk, Codec codec, bool optional, std::span<Number> out,
                                     std::vector<std::int64_t>* nulls, std::int64_t first_row) {
  pages_.open(chunk, {.codec = codec, .optional = optional, .values = std::ssize(out)});
  numbers_.begin_chunk();
  while (!pages_.done()) {
    const PageContents page = pages_.next();
    if (page.is_dictionary()) {
      numbers_.take_dictionary(page);
      continue;
    }
    const std::int64_t count = page.header.num_values;
    std::span<const std::int64_t> found;
    if (optional && !all_present(page.definition, count)) {
      DPIF_CHECK(nulls != nullptr, "there are nulls");
      const std::size_t before = nulls->size();
      append_nulls(page.definition, count, first_row, *nulls);
      found = std::span<const std::int64_t>(*nulls).subspan(before);
    }
    DPIF_CHECK(page.header.type == PageType::kData || page.header.num_nulls == std::ssize(found),
               "a page of ", page.header.num_nulls, " nulls has ", found.size());
    decode(page, out.first(count - found.size()));
    spread(out.first(count), found, first_row);
    out = out.subspan(count);
    first_row += count;
  }
}

template <class Number>
void ColumnChunkReader<Number>::trim() {
  pages_.trim(), numbers_.trim();
}

template <class Number>
void ColumnChunkReader<Number>::decode(const PageContents& page, std::span<Number> out) {
  if (page.header.encoding == Encoding::kPlain) {
    check_plain(page.values, out);
    return copy_past_caches(out.data(), page.values.data(), out.size_bytes());
  }
  if (out.size_bytes() > kStagedBytes) return numbers_.decode(page, out);
  staged_.resize(std::max(staged_.size(), out.size()));
  numbers_.decode(page, std::span(staged_).first(out.size()));
  copy_past_caches(out.data(), staged_.data(), out.size_bytes());
}

template class NumberDecoder<std::int32_t>;
template class NumberDecoder<std::int64_t>;
template class ColumnChunkReader<std::int32_t>;
template class ColumnChunkReader<std::int64_t>;

}  // namespace dpiframe::parquet
