// Decodes parquet's RLE/bit-packed hybrid on the CPU: indices of dictionary pages, levels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parquet/metadata/compact_reader.h"

namespace dpiframe::parquet {

// This many bytes behind a page must be readable: indices are unpacked eight at a time.
constexpr std::size_t kPagePadding = 64;

// A bit-packed run: `count` indices of `width` bits from `bits` on.
struct PackedIndices {
  const std::uint8_t* bits;
  std::int64_t count;
  int width;  // 1 to 32
};

// Writes dictionary[index] for each index, 0 to `last`; returns whether none was larger. One that
// is gives any value of the dictionary.
template <class Number>
bool look_up(const PackedIndices& indices, const Number* dictionary, std::uint32_t last,
             Number* out);
// The same for what AVX2 takes: 25 bits at most. Returns how many values it wrote, -1 if an index
// was larger.
template <class Number>
std::int64_t look_up_avx2(const PackedIndices& indices, const Number* dictionary,
                          std::uint32_t last, Number* out);

// Fills `out` from a page's values, whose first byte is the width of an index. Throws
// std::invalid_argument where they are no such values or point outside the dictionary.
template <class Number>
void decode_dictionary_values(Bytes values, std::span<const Number> dictionary,
                              std::span<Number> out);

// Whether a page's levels, in the same hybrid, are 1 for each of `count` values: none is null.
bool all_present(Bytes levels, std::int64_t count);

// Appends the rows of those that are 0, counted from `first_row`; std::invalid_argument where one
// is neither 0 nor 1.
void append_nulls(Bytes levels, std::int64_t count, std::int64_t first_row,
                  std::vector<std::int64_t>& rows);

}  // namespace dpiframe::parquet
