#include "parquet/raw/plain_values.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "parquet/encodings/delta_binary_packed.cuh"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

// Few bytes of differences may stand for any number of values, and of bytes of texts: as PLAIN
// values a page is no larger than others may be.
void check_plain_bytes(std::int64_t bytes, std::int64_t count) {
  DPIF_CHECK(bytes <= kMaxPageSize, "a page of ", count, " values has ", bytes,
             " bytes as PLAIN ones; at most are ", kMaxPageSize);
}

}  // namespace

// DELTA_LENGTH_BYTE_ARRAY: the lengths of all texts, then their bytes. DELTA_BYTE_ARRAY: how many
// bytes of the text before each begins with, then the rest of each as above.
Bytes PlainValues::texts(const PageContents& page, std::int64_t count, std::int64_t most_of_text) {
  const Encoding encoding = page.header.encoding;
  DPIF_CHECK(encoding == Encoding::kDeltaLengthByteArray || encoding == Encoding::kDeltaByteArray,
             "texts of encoding ", static_cast<int>(encoding));
  if (count == 0) return {};
  constexpr std::int64_t kLengthBytes = sizeof(std::int32_t);
  check_plain_bytes(kLengthBytes * count, count);
  Bytes values = page.values;
  prefixes_.assign(count, 0);
  if (encoding == Encoding::kDeltaByteArray) take_lengths(values, count, prefixes_);
  lengths_.resize(count);
  take_lengths(values, count, lengths_);
  const auto sum = [](const std::vector<std::int32_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  };
  const std::int64_t stored = sum(lengths_), bytes = stored + sum(prefixes_);
  DPIF_CHECK(stored <= std::ssize(values), "a page is cut off in its texts");
  DPIF_CHECK(bytes <= most_of_text * count + kMostBeside, "a page of ", count, " texts has ", bytes,
             " bytes");
  check_plain_bytes(bytes + kLengthBytes * count, count);
  const auto plain = plain_.take(bytes + kLengthBytes * count + kPagePadding);
  std::uint8_t* out = plain.data();
  std::int32_t before = 0;  // bytes of the text before, which ends at `out`
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t prefix = prefixes_[i], length = prefix + lengths_[i];
    DPIF_CHECK(prefix <= before, "a text begins with ", prefix, " bytes of one of ", before);
    std::memcpy(out, &length, kLengthBytes);
    if (prefix > 0) std::memcpy(out + kLengthBytes, out - before, prefix);
    if (lengths_[i] > 0) std::memcpy(out + kLengthBytes + prefix, values.data(), lengths_[i]);
    values = values.subspan(lengths_[i]);
    out += kLengthBytes + length;
    before = length;
  }
  return plain.first(out - plain.data());
}

template <class Number>
Bytes PlainValues::numbers(const PageContents& page, std::int64_t count) {
  const Encoding encoding = page.header.encoding;
  DPIF_CHECK(encoding == Encoding::kDeltaBinaryPacked || encoding == Encoding::kByteStreamSplit,
             "values of encoding ", static_cast<int>(encoding));
  check_plain_bytes(sizeof(Number) * count, count);
  const auto plain = plain_.take(sizeof(Number) * count + kPagePadding);
  const std::span out(reinterpret_cast<Number*>(plain.data()), static_cast<std::size_t>(count));
  NumberDecoder<Number>().decode(page, out);
  return plain.first(out.size_bytes());
}

template Bytes PlainValues::numbers<std::int32_t>(const PageContents&, std::int64_t);
template Bytes PlainValues::numbers<std::int64_t>(const PageContents&, std::int64_t);

void PlainValues::trim() {
  plain_.trim();
  for (std::vector<std::int32_t>* lengths : {&lengths_, &prefixes_})
    if (lengths->capacity() * sizeof(std::int32_t) > kKeptBytes) *lengths = {};
}

void PlainValues::take_lengths(Bytes& values, std::int64_t count,
                               std::vector<std::int32_t>& lengths) {
  DPIF_CHECK(values.size() <= kMaxPageSize, "a page of ", values.size(), " bytes; at most are ",
             kMaxPageSize);
  pages::PageBytes rest{};
  const bool good = pages::decode_delta({values.data(), static_cast<std::int32_t>(values.size())},
                                        static_cast<std::int32_t>(count), lengths.data(), &rest);
  DPIF_CHECK(good && *std::ranges::min_element(lengths) >= 0, "a page's lengths of ", count,
             " texts are corrupt");
  values = values.last(rest.size);
}

}  // namespace dpiframe::parquet
