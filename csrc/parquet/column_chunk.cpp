#include "parquet/column_chunk.h"

#include <algorithm>
#include <cstring>

#include "common/streaming_copy.h"
#include "parquet/rle_bit_packed.h"

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
  DPIF_CHECK(encoding == Encoding::kRleDictionary || encoding == Encoding::kPlainDictionary,
             "values of encoding ", static_cast<int>(encoding));
  decode_dictionary_values(page.values, std::span<const Number>(dictionary_), out);
}

template <class Number>
void NumberDecoder<Number>::trim() {
  if (dictionary_.capacity() * sizeof(Number) > kKeptBytes) dictionary_ = {};
}

template <class Number>
void ColumnChunkReader<Number>::read(Bytes chunk, Codec codec, bool optional,
                                     std::span<Number> out) {
  pages_.open(chunk, {.codec = codec, .optional = optional, .values = std::ssize(out)});
  numbers_.begin_chunk();
  while (!pages_.done()) {
    const PageContents page = pages_.next();
    if (page.is_dictionary()) {
      numbers_.take_dictionary(page);
      continue;
    }
    const std::int64_t count = page.header.num_values;
    DPIF_CHECK(page.header.num_nulls == 0 && (!optional || all_present(page.definition, count)),
               "there are nulls");
    decode(page, out.first(count));
    out = out.subspan(count);
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
