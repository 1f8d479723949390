// Decodes one data page of a raw column to the codes of its values: indices of a dictionary that
// holds codes, or PLAIN texts, which are hashed. Nulls have a code of their own.
//
// Of a page with nulls, a warp takes 1024 rows at a time: a bit for each row that has a value, then
// the codes of these values, one behind the other, then every row fetches its own.
#pragma once

#include "features/hashed_row.h"
#include "features/xxh64.h"
#include "parquet/gpu/decode_page.cuh"

namespace dpiframe::pages {

constexpr int kSomeRows = 1024;  // that are decoded at a time

// Shared memory of a warp.
struct CodesScratch {
  Scratch values;
  std::uint32_t window[kWindowWords];  // of levels
  std::uint32_t present[kSomeRows / 32];
  std::int32_t before[kSomeRows / 32];  // how many are present before those of each word
  std::int32_t codes[kSomeRows];
};

// Finds which rows have a value, from levels that `count_present` took.
class PresentRows {
 public:
  DPIF_HOST_DEVICE PresentRows(PageBytes levels, std::int32_t rows, CodesScratch& scratch)
      : reader_(levels, 1, scratch.window), rows_(rows), scratch_(scratch) {}

  // Of rows [first, first + count), at most kSomeRows: sets `present` and `before`, and returns how
  // many have a value.
  DPIF_HOST_DEVICE std::int32_t next(std::int32_t first, std::int32_t count) {
    lanes::sync();  // all are done with the rows before
    for (int w = lanes::index(); w < kSomeRows / 32; w += lanes::kCount) scratch_.present[w] = 0;
    const std::int32_t stop = first + count;
    for (std::int32_t at = first; at < stop;) {
      if (run_.end <= at && !reader_.next(at, rows_, run_)) return 0;
      const std::int32_t upto = run_.end < stop ? run_.end : stop;
      for (int w = lanes::index(); w < kSomeRows / 32; w += lanes::kCount)
        mark(first + 32 * w, at, upto, scratch_.present[w]);
      at = upto;
    }
    std::int32_t found = 0;
    for (int w = lanes::index(); w < kSomeRows / 32; w += lanes::kCount) {
      const lanes::PrefixSum sum = lanes::prefix_sum(popcount(scratch_.present[w]));
      scratch_.before[w] = found + sum.before;
      found += sum.all;
    }
    lanes::sync();
    return found;
  }

 private:
  // Sets the bits of rows [at, upto) in a word whose lowest is that of row `begin`.
  DPIF_HOST_DEVICE void mark(std::int32_t begin, std::int32_t at, std::int32_t upto,
                             std::uint32_t& word) const {
    const std::int32_t low = at > begin ? at : begin;
    const std::int32_t high = upto < begin + 32 ? upto : begin + 32;
    if (low >= high) return;
    const std::uint32_t bits =
        bits_at(reader_.words(), run_.bits + low * run_.stride, run_.stride == 0 ? 1 : high - low);
    const std::uint32_t all = ones(high - low);
    word |= (run_.stride == 0 ? (bits == 0 ? 0 : all) : bits) << (low - begin);
  }

  RunReader reader_;
  Run run_{0, 0, 0, 0};
  std::int32_t rows_;
  CodesScratch& scratch_;
};

// The bytes of a text: those from `at` on, counted from an aligned word.
struct Text {
  const std::uint8_t* words;
  std::uint32_t at;

  DPIF_HOST_DEVICE std::uint64_t word8(std::int64_t i) const {
    return word4(i + 4) << 32 | word4(i);
  }
  DPIF_HOST_DEVICE std::uint64_t word4(std::int64_t i) const {
    return bits_at(words, 8 * (at + static_cast<std::uint32_t>(i)), 32);
  }
  DPIF_HOST_DEVICE std::uint64_t byte(std::int64_t i) const {
    return load<std::uint8_t>(words + at + i);
  }
};

// Takes PLAIN texts, each behind its length in 4 bytes. Where one begins is known only from the one
// before: the lanes guess that the next ones are as long, and those before the first that is not
// are right.
class TextReader {
 public:
  DPIF_HOST_DEVICE TextReader(PageBytes bytes, const parquet::Page& page)
      : words_(bytes.begin - misalignment(bytes.begin)),
        at_(misalignment(bytes.begin)),
        end_(at_ + bytes.size),
        seed_(page.seed),
        modulo_(page.modulus),
        missing_(page.missing) {}

  // Writes the codes of the next `count` texts; false where they are cut off.
  DPIF_HOST_DEVICE bool take(std::int32_t count, std::int32_t* out) {
    for (std::int32_t done = 0; done < count;) {
      if (end_ - at_ < 4) return false;
      const std::uint32_t size = size_at(at_);
      if (size > static_cast<std::uint32_t>(end_ - at_ - 4)) return false;
      const std::int64_t step = std::int64_t{size} + 4;
      const std::int64_t at = at_ + lanes::index() * step;
      const bool right =
          lanes::index() == 0 || (lanes::index() < count - done && at + step <= end_ &&
                                  size_at(static_cast<std::int32_t>(at)) == size);
      const int wrong = lanes::first(!right);
      const int taken = wrong < 0 ? lanes::kCount : wrong;
      if (lanes::index() < taken)
        out[done + lanes::index()] = code_of({words_, static_cast<std::uint32_t>(at + 4)}, size);
      done += taken;
      at_ += static_cast<std::int32_t>(taken * step);
    }
    return true;
  }

 private:
  DPIF_HOST_DEVICE std::uint32_t size_at(std::int32_t at) const {
    return bits_at(words_, 8 * static_cast<std::uint32_t>(at), 32);
  }

  DPIF_HOST_DEVICE std::int32_t code_of(const Text& text, std::uint32_t size) const {
    if (size == 0) return missing_;
    const std::uint64_t hash =
        size == 8 ? xxh64_word(text.word8(0), seed_) : xxh64_of(text, size, seed_);
    return row_of_hash(hash, modulo_);
  }

  const std::uint8_t* words_;
  std::int32_t at_;  // both from `words_` on
  std::int32_t end_;
  std::uint64_t seed_;
  FastModulo modulo_;
  std::int32_t missing_;
};

// Writes a page's codes; `values` gives those that are there, `present` of them.
template <class Values>
DPIF_HOST_DEVICE bool take_rows(Values& values, const parquet::Page& page, PageBytes levels,
                                std::int32_t present, CodesScratch& scratch, std::int32_t* out) {
  if (present == page.values) return values.take(present, out);
  PresentRows rows(levels, page.values, scratch);
  for (std::int32_t first = 0; first < page.values; first += kSomeRows) {
    const int count = page.values - first < kSomeRows ? page.values - first : kSomeRows;
    if (!values.take(rows.next(first, count), scratch.codes)) return false;
    lanes::sync();
    for (int row = lanes::index(); row < count; row += lanes::kCount) {
      const std::uint32_t word = scratch.present[row / 32];
      const int at = scratch.before[row / 32] + popcount(word & ones(row % 32));
      out[first + row] = (word >> row % 32 & 1) != 0 ? scratch.codes[at] : page.missing;
    }
  }
  return true;
}

// Writes a page of a raw column to out [columns, rows]; false where it is not what it should be:
// its rows may then be anything.
DPIF_HOST_DEVICE bool decode_codes(const Unit& unit, const parquet::Page& page, std::int64_t rows,
                                   CodesScratch& scratch, std::int32_t* out) {
  PageBytes bytes = bytes_of(unit, page);
  PageBytes levels{unit.compressed + page.levels_at, page.level_bytes};
  if (page.levels && !split_levels(bytes, levels)) return false;
  std::int32_t present = page.values;
  if (page.levels || page.level_bytes > 0) {
    present = count_present(levels, page.values, scratch.values);
    if (present < 0) return false;
  }
  std::int32_t* to = out + page.column * rows + page.row;
  if (page.kind == parquet::PageKind::kTexts) {
    TextReader texts(bytes, page);
    return take_rows(texts, page, levels, present, scratch, to);
  }
  const Dictionary dictionary = dictionary_of(unit, page);
  if (is_aligned<std::int32_t>(dictionary.numbers)) {
    IndexReader<std::int32_t, true> indices(bytes, present, dictionary, scratch.values);
    return take_rows(indices, page, levels, present, scratch, to);
  }
  IndexReader<std::int32_t, false> indices(bytes, present, dictionary, scratch.values);
  return take_rows(indices, page, levels, present, scratch, to);
}

}  // namespace dpiframe::pages
