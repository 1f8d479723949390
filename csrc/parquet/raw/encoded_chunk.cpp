#include "parquet/raw/encoded_chunk.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "parquet/encodings/rle_runs.h"
#include "parquet/raw/spread.h"

namespace dpiframe::parquet {
namespace {

constexpr std::size_t kRun = 256;  // values that are encoded at one time

std::string_view take_text(Bytes& values) {
  std::uint32_t size = 0;
  DPIF_CHECK(values.size() >= sizeof(size), "a page is cut off in its texts");
  std::memcpy(&size, values.data(), sizeof(size));
  DPIF_CHECK(size <= values.size() - sizeof(size), "a page is cut off in its texts");
  const auto* text = reinterpret_cast<const char*>(values.data() + sizeof(size));
  values = values.subspan(sizeof(size) + size);
  return {text, size};
}

// Takes texts that all have eight bytes; false where some have not, or are cut off.
bool take_words(Bytes& values, std::span<std::uint64_t> out) {
  constexpr std::size_t kStored = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  if (values.size() / kStored < out.size()) return false;
  std::uint32_t others = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t size;
    std::memcpy(&size, values.data() + i * kStored, sizeof(size));
    std::memcpy(&out[i], values.data() + i * kStored + sizeof(size), sizeof(out[i]));
    others |= size ^ sizeof(out[i]);
  }
  if (others != 0) return false;
  values = values.subspan(out.size() * kStored);
  return true;
}

// Takes numbers stored as Stored from PLAIN values, widened to Wide.
template <class Stored, class Wide>
void take_numbers(Bytes& values, std::span<Wide> out) {
  DPIF_CHECK(values.size() / sizeof(Stored) >= out.size(), "a page of numbers is cut off");
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored number;
    std::memcpy(&number, values.data() + i * sizeof(number), sizeof(number));
    out[i] = static_cast<Wide>(number);
  }
  values = values.subspan(out.size() * sizeof(Stored));
}

// How many of `count` levels are 1: those of values that are there.
std::int64_t count_present(Bytes levels, std::int64_t count) {
  std::int64_t present = 0;
  for_each_run(
      levels, 1, count,
      [&](std::uint32_t level, std::int64_t size) {
        DPIF_CHECK(level <= 1, "a definition level ", level, " above 1");
        present += level * size;
      },
      [&](const PackedIndices& packed) {
        std::int64_t i = 0;
        for (; i + 64 <= packed.count; i += 64) {
          std::uint64_t word;
          std::memcpy(&word, packed.bits + i / 8, sizeof(word));
          present += std::popcount(word);
        }
        for (; i < packed.count; ++i) present += packed.bits[i / 8] >> i % 8 & 1;
      });
  return present;
}

}  // namespace

void encode_plain(Bytes values, RawKind kind, std::size_t count,
                  std::span<const EncodedTarget> targets, std::span<Code* const> codes) {
  std::string_view texts[kRun];
  std::uint64_t words[kRun];
  std::int64_t integers[kRun];
  double reals[kRun];
  for (std::size_t first = 0; first < count; first += kRun) {
    const std::size_t size = std::min(kRun, count - first);
    const std::span<std::int64_t> whole(integers, size);
    const std::span<double> real(reals, size);
    const bool is_words = kind == RawKind::kText && take_words(values, {words, size});
    if (kind == RawKind::kText && !is_words)
      for (std::size_t i = 0; i < size; ++i) texts[i] = take_text(values);
    if (kind == RawKind::kInt32) take_numbers<std::int32_t>(values, whole);
    if (kind == RawKind::kUint32) take_numbers<std::uint32_t>(values, whole);
    if (kind == RawKind::kInt64) take_numbers<std::int64_t>(values, whole);
    if (kind == RawKind::kFloat) take_numbers<float>(values, real);
    if (kind == RawKind::kDouble) take_numbers<double>(values, real);
    for (std::size_t t = 0; t < targets.size(); ++t) {
      const ValueEncoder& encoder = *targets[t].encoder;
      if (is_words)
        encoder.words({words, size}, codes[t] + first);
      else if (kind == RawKind::kText)
        encoder.strings({texts, size}, codes[t] + first);
      else if (kind == RawKind::kFloat || kind == RawKind::kDouble)
        encoder.reals(real, codes[t] + first);
      else
        encoder.integers(whole, codes[t] + first);
    }
  }
}

void EncodedChunkReader::read(Bytes chunk, const ChunkForm& form, RawKind kind,
                              std::span<const EncodedTarget> targets, std::int64_t row) {
  pages_.open(chunk, form);
  most_of_text_ = form.most_of_value;
  dictionaries_.resize(std::max(dictionaries_.size(), targets.size()));
  staged_.resize(dictionaries_.size());
  for (std::vector<Code>& codes : dictionaries_) codes.clear();  // those of the chunk before
  while (!pages_.done()) {
    const PageContents page = pages_.next();
    if (page.is_dictionary()) {
      take_dictionary(page, kind, targets);
      continue;
    }
    read_data(page, form.optional, kind, targets, row);
    row += page.header.num_values;
  }
}

void EncodedChunkReader::trim() {
  pages_.trim(), plain_.trim();
  for (auto* kept : {&dictionaries_, &staged_})
    for (std::vector<Code>& codes : *kept)
      if (codes.capacity() * sizeof(Code) > kKeptBytes) codes = {};
}

void EncodedChunkReader::take_dictionary(const PageContents& page, RawKind kind,
                                         std::span<const EncodedTarget> targets) {
  // A value has a byte at least, so that the page's bytes justify the memory.
  DPIF_CHECK(page.header.num_values <= std::ssize(page.values), "a dictionary of ",
             page.header.num_values, " values has only ", page.values.size(), " bytes");
  std::vector<Code*> codes;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    dictionaries_[t].resize(page.header.num_values);
    codes.push_back(dictionaries_[t].data());
  }
  encode_plain(page.values, kind, page.header.num_values, targets, codes);
}

void EncodedChunkReader::read_data(const PageContents& page, bool optional, RawKind kind,
                                   std::span<const EncodedTarget> targets, std::int64_t row) {
  const std::int64_t count = page.header.num_values;
  const std::int64_t present = optional ? count_present(page.definition, count) : count;
  const Encoding encoding = page.header.encoding;
  const bool has_dictionary =
      encoding == Encoding::kRleDictionary || encoding == Encoding::kPlainDictionary;
  std::vector<Code*> codes;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const auto wanted = static_cast<std::size_t>(present + kSpreadPadding);
    if (present < count && staged_[t].size() < wanted) staged_[t].resize(wanted);
    codes.push_back(present < count ? staged_[t].data() : targets[t].out + row);
  }
  if (!has_dictionary)
    encode_plain(plain_values(page, kind, present), kind, present, targets, codes);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (has_dictionary)
      decode_dictionary_values(page.values, std::span<const Code>(dictionaries_[t]),
                               std::span(codes[t], static_cast<std::size_t>(present)));
    if (present < count)
      spread_codes(page.definition, count, codes[t], targets[t].encoder->missing(),
                   targets[t].out + row);
  }
}

Bytes EncodedChunkReader::plain_values(const PageContents& page, RawKind kind, std::int64_t count) {
  if (page.header.encoding == Encoding::kPlain) return page.values;
  if (kind == RawKind::kText) return plain_.texts(page, count, most_of_text_);
  const bool wide = kind == RawKind::kInt64 || kind == RawKind::kDouble;
  return wide ? plain_.numbers<std::int64_t>(page, count)
              : plain_.numbers<std::int32_t>(page, count);
}

}  // namespace dpiframe::parquet
