#include "parquet/rle_bit_packed.h"

#include <algorithm>
#include <cstring>

namespace dpiframe::parquet {
namespace {

bool has_avx2() {
#ifdef __x86_64__
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

std::uint32_t index_at(const PackedIndices& indices, std::int64_t i) {
  const std::int64_t bit = i * indices.width;
  std::uint64_t bytes;  // an index of 32 bits may lie in five
  std::memcpy(&bytes, indices.bits + bit / 8, sizeof(bytes));
  return static_cast<std::uint32_t>(bytes >> bit % 8 & ((std::uint64_t{1} << indices.width) - 1));
}

// Calls run(value, count) for runs of one value and packed(indices) for bit-packed ones, until
// there are `count` values.
template <class Run, class Packed>
void for_each_run(Bytes bytes, int width, std::int64_t count, Run run, Packed packed) {
  CompactReader reader(bytes);
  const std::size_t value_bytes = (width + 7) / 8;
  while (count > 0) {
    const std::uint64_t head = reader.varint();
    DPIF_CHECK(head > 1 && head >> 1 <= INT32_MAX, "a page has a run of ", head >> 1, " values");
    const auto length = static_cast<std::int64_t>(head >> 1);
    if ((head & 1) == 0) {
      std::uint32_t value = 0;
      for (std::size_t b = 0; b < value_bytes; ++b)
        value |= static_cast<std::uint32_t>(reader.byte()) << (8 * b);
      const std::int64_t taken = std::min(length, count);
      run(value, taken);
      count -= taken;
    } else {
      const std::int64_t taken = std::min(8 * length, count);
      const auto* bits = bytes.data() + reader.at();
      // Some writers leave out what fills the last group.
      const auto needed = static_cast<std::size_t>((taken * width + 7) / 8);
      const auto whole = static_cast<std::size_t>(length * width);
      const std::size_t left = bytes.size() - reader.at();
      DPIF_CHECK(needed <= left, "a page is cut off");
      reader = CompactReader(bytes, reader.at() + std::min(whole, left));
      packed(PackedIndices{bits, taken, width});
      count -= taken;
    }
  }
}

}  // namespace

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

template void decode_dictionary_values(Bytes, std::span<const std::int32_t>,
                                       std::span<std::int32_t>);
template void decode_dictionary_values(Bytes, std::span<const std::int64_t>,
                                       std::span<std::int64_t>);

}  // namespace dpiframe::parquet
