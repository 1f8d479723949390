#include "parquet/lists/page_rows.h"

#include <bit>

#include "parquet/encodings/rle_runs.h"

namespace dpiframe::parquet {
namespace {

// Calls found(position, level) for each of `count` levels of 1 or 2 bits that is not `usual`; most
// are, and 64 bits of them are passed at one time.
template <class Found>
void for_each_other(Bytes levels, int width, std::uint32_t usual, std::int64_t count, Found found) {
  const std::uint64_t lowest = width == 1 ? ~0ull : 0x5555'5555'5555'5555ull;
  const std::uint64_t pattern = lowest * usual;
  const int in_word = 64 / width;
  std::int64_t at = 0;
  for_each_run(
      levels, width, count,
      [&](std::uint32_t level, std::int64_t size) {
        if (level != usual)
          for (std::int64_t i = 0; i < size; ++i) found(at + i, level);
        at += size;
      },
      [&](const PackedIndices& packed) {
        for (std::int64_t first = 0; first < packed.count; first += in_word) {
          std::uint64_t word = 0;
          const std::int64_t left = std::min<std::int64_t>(in_word, packed.count - first);
          std::memcpy(&word, packed.bits + first * width / 8, (left * width + 7) / 8);
          std::uint64_t differs = word ^ pattern;
          if (width == 2) differs = (differs | differs >> 1) & lowest;
          if (left < in_word) differs &= (1ull << left * width) - 1;
          for (; differs != 0; differs &= differs - 1) {
            const int bit = std::countr_zero(differs);
            found(at + first + bit / width,
                  static_cast<std::uint32_t>(word >> bit) & ((1u << width) - 1));
          }
        }
        at += packed.count;
      });
}

}  // namespace

void PageRows::read(const PageContents& page, const ListElement& element, std::int64_t most_rows) {
  begins_.clear(), empties_.clear(), nulls_.clear();
  const std::int64_t count = page.header.num_values;
  for_each_other(page.repetition, 1, 1, count, [&](std::int64_t position, std::uint32_t) {
    DPIF_CHECK(std::ssize(begins_) < most_rows, "a page begins more than the ", most_rows,
               " rows that are left");
    begins_.push_back(position);
  });
  const auto value_level = static_cast<std::uint32_t>(element.value_level);
  const auto slot_level = static_cast<std::uint32_t>(element.slot_level);
  const int width = std::bit_width(value_level);
  for_each_other(
      page.definition, width, value_level, count, [&](std::int64_t position, std::uint32_t level) {
        DPIF_CHECK(level < value_level, "a definition level ", level, " above ", value_level);
        if (level < slot_level)
          empties_.push_back(position);
        else
          nulls_.push_back(position - std::ssize(empties_));
      });
  slots_ = count - std::ssize(empties_);
  std::int64_t passed = 0;  // empty lists before a row
  for (std::int64_t& begin : begins_) {
    while (passed < std::ssize(empties_) && empties_[passed] < begin) ++passed;
    begin -= passed;
  }
}

void PageRows::trim() {
  for (auto* kept : {&begins_, &empties_, &nulls_})
    if (kept->capacity() * sizeof(std::int64_t) > kKeptBytes) *kept = {};
}

}  // namespace dpiframe::parquet
