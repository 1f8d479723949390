// Strings of eight bytes (Criteo's and Avazu's hex values) are hashed without a call; counts, most
// of which are small, are looked up in a table that fits into the cache.
#include "features/encode_rows.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/fast_modulo.h"
#include "features/xxh64.h"

namespace dpiframe {
namespace {

// out[i] = code_of(i, whether value i is there); nulls are too many to be branched on.
template <class Code, class CodeOf>
void encode(std::int64_t size, Validity validity, Code* out, CodeOf code_of) {
  if (validity.bits == nullptr)
    for (std::int64_t i = 0; i < size; ++i) out[i] = code_of(i, true);
  else
    for (std::int64_t i = 0; i < size; ++i) out[i] = code_of(i, validity[i]);
}

// Rows of values that are there. The index is larger than the cache: values are looked up in
// groups, all of whose memory is asked for before any of it is needed.
template <class Known, class Values>
void known_rows(const Known& known, const Numbering& numbering, const Values& values,
                std::int32_t* out) {
  constexpr std::int64_t kGroup = 64;
  std::uint64_t hashes[kGroup];
  for (std::int64_t first = 0; first < values.size; first += kGroup) {
    const std::int64_t count = std::min(kGroup, values.size - first);
    for (std::int64_t k = 0; k < count; ++k) {
      hashes[k] = value_hash(values[first + k]);
      known.prefetch(hashes[k]);
    }
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t position = known.find(values[first + k], hashes[k]);
      out[first + k] = numbering[position];
    }
  }
}

std::int32_t row_beyond(std::int64_t value, const Buckets& buckets) {
  const auto passed = std::upper_bound(buckets.steps.begin(), buckets.steps.end(), value);
  return buckets.small.back() + static_cast<std::int32_t>(passed - buckets.steps.begin());
}

}  // namespace

template <class Texts>
void hashed_string_rows(const Texts& strings, Validity validity, HashParams params,
                        std::int32_t* out) {
  strings.check();
  const FastModulo modulo(params.modulus);
  encode(strings.size, validity, out, [&](std::int64_t i, bool there) {
    const std::string_view text = there ? strings[i] : std::string_view();
    if (text.size() == 8) {
      std::uint64_t word;
      std::memcpy(&word, text.data(), 8);
      return row_of_hash(xxh64_word(word, params.seed), modulo);
    }
    const auto length = static_cast<std::int64_t>(text.size());
    return length == 0 ? kMissingRow : row_of_hash(xxh64(text.data(), length, params.seed), modulo);
  });
}

void hashed_int64_rows(const std::int64_t* values, std::int64_t size, Validity validity,
                       HashParams params, std::int32_t* out) {
  const FastModulo modulo(params.modulus);
  encode(size, validity, out, [&](std::int64_t i, bool there) {
    const auto word = static_cast<std::uint64_t>(values[i]);
    const std::int32_t row = row_of_hash(xxh64_word(word, params.seed), modulo);
    return there ? row : kMissingRow;
  });
}

template <class Texts>
void known_string_rows(const ValueIndex<Strings<std::int32_t>>& known, const Numbering& numbering,
                       const Texts& strings, Validity validity, std::int32_t* out) {
  strings.check();
  known_rows(known, numbering, strings, out);
  const std::int64_t empty = known.find(std::string_view(), value_hash(std::string_view()));
  const std::int32_t empty_row = empty < 0 ? numbering.missing : numbering[empty];
  encode(strings.size, validity, out, [&](std::int64_t i, bool there) {
    if (!there) return numbering.missing;
    return strings[i].empty() ? empty_row : out[i];
  });
}

void known_int64_rows(const ValueIndex<Integers>& known, const Numbering& numbering,
                      const std::int64_t* values, std::int64_t size, Validity validity,
                      std::int32_t* out) {
  known_rows(known, numbering, Integers{values, size}, out);
  encode(size, validity, out,
         [&](std::int64_t i, bool there) { return there ? out[i] : numbering.missing; });
}

template <class Integer>
void bucket_rows(const Integer* values, std::int64_t size, Validity validity,
                 const Buckets& buckets, std::int32_t* out) {
  DPIF_CHECK(!buckets.small.empty(), "small must hold at least 1 row, got 0");
  const auto end = buckets.lowest + static_cast<std::int64_t>(buckets.small.size());
  encode(size, validity, out, [&](std::int64_t i, bool there) {
    const std::int64_t value =
        there ? std::max<std::int64_t>(values[i], buckets.lowest) : buckets.lowest;
    const std::int32_t row =
        value < end ? buckets.small[value - buckets.lowest] : row_beyond(value, buckets);
    return there ? row : kMissingRow;
  });
}

template <class Code>
void gather_codes(std::span<const Code> codes, const std::int32_t* indices, std::int64_t size,
                  Validity validity, Code* out) {
  DPIF_CHECK(!codes.empty(), "codes must end in that of nulls, got none");
  const auto null_index = static_cast<std::uint32_t>(codes.size() - 1);
  bool inside = true;
  encode(size, validity, out, [&](std::int64_t i, bool there) {
    const std::uint32_t index = there ? static_cast<std::uint32_t>(indices[i]) : null_index;
    inside &= index < null_index || !there;
    return codes[std::min(index, null_index)];
  });
  DPIF_CHECK(inside, "an index is outside the dictionary's ", null_index, " values");
}

template void hashed_string_rows(const Strings<std::int32_t>&, Validity, HashParams, std::int32_t*);
template void hashed_string_rows(const Strings<std::int64_t>&, Validity, HashParams, std::int32_t*);
template void hashed_string_rows(const StringViews&, Validity, HashParams, std::int32_t*);
template void known_string_rows(const ValueIndex<Strings<std::int32_t>>&, const Numbering&,
                                const Strings<std::int32_t>&, Validity, std::int32_t*);
template void known_string_rows(const ValueIndex<Strings<std::int32_t>>&, const Numbering&,
                                const Strings<std::int64_t>&, Validity, std::int32_t*);
template void known_string_rows(const ValueIndex<Strings<std::int32_t>>&, const Numbering&,
                                const StringViews&, Validity, std::int32_t*);
template void bucket_rows(const std::int32_t*, std::int64_t, Validity, const Buckets&,
                          std::int32_t*);
template void bucket_rows(const std::int64_t*, std::int64_t, Validity, const Buckets&,
                          std::int32_t*);
template void gather_codes(std::span<const std::int32_t>, const std::int32_t*, std::int64_t,
                           Validity, std::int32_t*);
template void gather_codes(std::span<const float>, const std::int32_t*, std::int64_t, Validity,
                           float*);

}  // namespace dpiframe
