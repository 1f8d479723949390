// Raw values of a field to the rows of its table, one pass a column.
//
// Row 0 is for missing values, row 1 for unseen ones, known values have the rows from 2 on, unless
// a vocabulary numbers them otherwise; dpiframe_core/features/schema.py has the formulas. Every
// function overwrites out [size].
#pragma once

#include <cstdint>
#include <span>

#include "features/hashed_row.h"
#include "features/strings.h"
#include "features/value_index.h"

namespace dpiframe {

// Which of an Arrow array's values are there: bit `offset + i`; without bits, all.
struct Validity {
  const std::uint8_t* bits = nullptr;
  std::int64_t offset = 0;

  bool operator[](std::int64_t i) const {
    return bits[(offset + i) >> 3] >> ((offset + i) & 7) & 1;
  }
};

// Texts are Strings of offsets of 4 or 8 bytes, or StringViews.

// 2 + XXH64(string i; seed) mod modulus; an empty string is missing. Throws for bad offsets.
struct HashParams {
  std::uint64_t seed;
  std::uint64_t modulus;  // 1 .. 2^31 - 3
};
template <class Texts>
void hashed_string_rows(const Texts& strings, Validity validity, HashParams params,
                        std::int32_t* out);

// The same of the 8 little-endian bytes of integers.
void hashed_int64_rows(const std::int64_t* values, std::int64_t size, Validity validity,
                       HashParams params, std::int32_t* out);

// The rows of known values, by position, and of all others; without `of`, 2 + position.
struct Numbering {
  const std::int32_t* of = nullptr;
  std::int32_t missing = kMissingRow;
  std::int32_t unseen = kUnseenRow;

  std::int32_t operator[](std::int64_t position) const {
    if (position < 0) return unseen;
    return of == nullptr ? static_cast<std::int32_t>(position) + kFirstValueRow : of[position];
  }
};

// Rows of strings; an empty one is missing unless it is known. Throws for bad offsets.
template <class Texts>
void known_string_rows(const ValueIndex<Strings<std::int32_t>>& known, const Numbering& numbering,
                       const Texts& strings, Validity validity, std::int32_t* out);

// The same of integers.
void known_int64_rows(const ValueIndex<Integers>& known, const Numbering& numbering,
                      const std::int64_t* values, std::int64_t size, Validity validity,
                      std::int32_t* out);

// Rows of integers in buckets: `small` holds the rows of lowest, lowest + 1, ..., of which the
// first is also that of all below; beyond the last the row grows by one at each of `steps`
// (ascending).
struct Buckets {
  std::int64_t lowest;
  std::span<const std::int32_t> small;  // not empty
  std::span<const std::int64_t> steps;
};
template <class Integer>
void bucket_rows(const Integer* values, std::int64_t size, Validity validity,
                 const Buckets& buckets, std::int32_t* out);

// codes[indices[i]], the last code for nulls. Throws for an index that is not before the last.
template <class Code>
void gather_codes(std::span<const Code> codes, const std::int32_t* indices, std::int64_t size,
                  Validity validity, Code* out);

}  // namespace dpiframe
