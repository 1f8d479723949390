#include "parquet/encodings/rle_bit_packed.h"

#include <algorithm>

#include "common/processor.h"
#include "parquet/encodings/rle_runs.h"

namespace dpiframe::parquet {
template <class Number>
bool look_up(const PackedIndices& indices, const Number* dictionary, std::uint32_t last,
             Number* out) {
  std::int64_t i = 0;
#ifdef __x86_64__
  if (has_avx2()) i = look_up_avx2(indices, dictionary, last, out);
  if (i < 0) return false;
#endif
  std::uint32_t largest = 0;
  for (; i < indices.count; ++i) {
    const std::uint32_t index = index_at(indices, i);
    largest = std::max(largest, index);
    out[i] = dictionary[std::min(index, last)];
  }
  return largest <= last;
}

template <class Number>
void decode_dictionary_values(Bytes values, std::span<const Number> dictionary,
                              std::span<Number> out) {
  if (out.empty()) return;
  DPIF_CHECK(!values.empty() && values[0] <= 32, "a page has no indices of a dictionary");
  DPIF_CHECK(!dictionary.empty(), "a page refers to a dictionary that is missing or empty");
  const auto last = static_cast<std::uint32_t>(dictionary.size() - 1);
  Number* next = out.data();
  bool inside = true;
  for_each_run(
      values.subspan(1), values[0], static_cast<std::int64_t>(out.size()),
      [&](std::uint32_t index, std::int64_t count) {
        inside &= index <= last;
        std::fill_n(next, count, dictionary[std::min(index, last)]);
        next += count;
      },
      [&](const PackedIndices& indices) {
        if (indices.width == 0)
          std::fill_n(next, indices.count, dictionary[0]);
        else
          inside &= look_up(indices, dictionary.data(), last, next);
        next += indices.count;
      });
  DPIF_CHECK(inside, "a page has an index outside its dictionary of ", dictionary.size());
}

bool all_present(Bytes levels, std::int64_t count) {
  bool all = true;
  for_each_run(
      levels, 1, count, [&](std::uint32_t level, std::int64_t) { all &= level == 1; },
      [&](const PackedIndices& indices) {
        for (std::int64_t i = 0; i < indices.count; ++i) all &= index_at(indices, i) == 1;
      });
  return all;
}

void append_nulls(Bytes levels, std::int64_t count, std::int64_t first_row,
                  std::vector<std::int64_t>& rows) {
  std::int64_t row = first_row;
  for_each_run(
      levels, 1, count,
      [&](std::uint32_t level, std::int64_t length) {
        DPIF_CHECK(level <= 1, "a level of ", level);
        for (std::int64_t i = 0; i < length && level == 0; ++i) rows.push_back(row + i);
        row += length;
      },
      [&](const PackedIndices& indices) {
        for (std::int64_t i = 0; i < indices.count; ++i, ++row)
          if (index_at(indices, i) == 0) rows.push_back(row);
      });
}

template void decode_dictionary_values(Bytes, std::span<const std::int32_t>,
                                       std::span<std::int32_t>);
template void decode_dictionary_values(Bytes, std::span<const std::int64_t>,
                                       std::span<std::int64_t>);

}  // namespace dpiframe::parquet
