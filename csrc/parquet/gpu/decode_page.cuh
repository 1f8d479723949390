// Decodes one data page: numbers in one of the encodings, or indices into a dictionary page.
//
// All lanes of a warp work on one page. Up to 32 runs are parsed at a time and then their values
// are gathered, whichever run each belongs to: lanes own neighbouring values, so that stores are
// coalesced however short the runs are, and a lane has several loads in flight.
//
// Whatever a page holds, only its own bytes, its dictionary's and its rows of its column are
// accessed, and the rest of the aligned 4-byte words in which its first and last byte lie.
#pragma once

#include "parquet/byte_stream_split.cuh"
#include "parquet/delta_binary_packed.cuh"
#include "parquet/gpu/rle_bit_packed.cuh"

namespace dpiframe::pages {

constexpr int kAtATime = 4;        // values a lane has under way
constexpr int kMostValues = 1024;  // no more runs are found ahead of so many values

// A unit's pages and where their bytes are.
struct Unit {
  const parquet::Page* pages;
  const std::uint8_t* compressed;
  const std::uint8_t* uncompressed;
};

DPIF_HOST_DEVICE PageBytes bytes_of(const Unit& unit, const parquet::Page& page) {
  return page.codec != Codec::kNone
             ? PageBytes{unit.uncompressed + page.uncompressed_at, page.uncompressed_bytes}
             : PageBytes{unit.compressed + page.compressed_at, page.compressed_bytes};
}

struct Dictionary {
  const std::uint8_t* numbers;
  std::uint32_t size;
};

template <class Number>
DPIF_HOST_DEVICE bool is_aligned(const std::uint8_t* numbers) {
  return reinterpret_cast<std::uintptr_t>(numbers) % sizeof(Number) == 0;
}

// Number i of those that lie at `numbers`. As `bits_at`, without branches.
template <class Number, bool kAligned>
DPIF_HOST_DEVICE Number number_at(const std::uint8_t* numbers, std::uint32_t i) {
  const std::uint8_t* at = numbers + std::int64_t{i} * static_cast<int>(sizeof(Number));
  if constexpr (kAligned) {
    return load<Number>(at);
  } else {
    const int off = misalignment(at);
    const auto first = load<std::uint32_t>(at - off), second = load<std::uint32_t>(at - off + 4);
    const std::uint32_t low = shifted(first, second, 8 * off);
    if constexpr (sizeof(Number) == 4) {
      return static_cast<Number>(low);
    } else {
      const auto third = load<std::uint32_t>(at - off + (off == 0 ? 4 : 8));
      const std::uint32_t high = shifted(second, third, 8 * off);
      return static_cast<Number>(std::uint64_t{high} << 32 | low);
    }
  }
}

template <class Number, bool kAligned>
DPIF_HOST_DEVICE void copy_numbers(const std::uint8_t* numbers, std::int32_t count, Number* out) {
  constexpr int kStep = 2 * kAtATime;
  for (int i = lanes::index(); i < count; i += lanes::kCount * kStep) {
    Number found[kStep];
    for (int k = 0; k < kStep; ++k) {
      const int at = i + k * lanes::kCount;
      found[k] = number_at<Number, kAligned>(numbers, at < count ? at : count - 1);
    }
    for (int k = 0; k < kStep; ++k)
      if (i + k * lanes::kCount < count) out[i + k * lanes::kCount] = found[k];
  }
}

// Writes the values [first, last) of the page, which are those of `runs`; returns whether their
// indices are inside the dictionary.
template <class Number, bool kAligned>
DPIF_HOST_DEVICE bool gather(const Run* runs, const std::uint8_t* words, std::int32_t first,
                             std::int32_t last, const Dictionary& dictionary, Number* out) {
  bool inside = true;
  Run run = *runs;
  for (int i = first + lanes::index(); i < last; i += lanes::kCount * kAtATime) {
    std::uint32_t bit[kAtATime];
    std::uint32_t width[kAtATime];
    for (int k = 0; k < kAtATime; ++k) {
      const int at = i + k * lanes::kCount < last ? i + k * lanes::kCount : last - 1;
      while (at >= run.end) run = *++runs;
      bit[k] = run.bits + at * run.stride;
      width[k] = run.width;
    }
    std::uint32_t index[kAtATime];
    for (int k = 0; k < kAtATime; ++k) index[k] = bits_at(words, bit[k], width[k]);
    Number found[kAtATime];
    for (int k = 0; k < kAtATime; ++k) {
      const bool good = index[k] < dictionary.size;
      inside &= good;
      found[k] = number_at<Number, kAligned>(dictionary.numbers, good ? index[k] : 0);
    }
    for (int k = 0; k < kAtATime; ++k)
      if (i + k * lanes::kCount < last) out[i + k * lanes::kCount] = found[k];
  }
  return inside;
}

// Values that are indices: the width of one in a byte, then runs.
template <class Number, bool kAligned>
DPIF_HOST_DEVICE bool look_up(PageBytes bytes, std::int32_t count, const Dictionary& dictionary,
                              Scratch& scratch, Number* out) {
  if (count == 0) return true;
  const std::uint32_t width = bytes.size > 0 ? bytes.begin[0] : 255;
  if (width > 32 || dictionary.size == 0) return false;
  RunReader reader({bytes.begin + 1, bytes.size - 1}, width, scratch.window);
  bool inside = true;
  for (std::int32_t first = 0; first < count;) {
    lanes::sync();  // all are done with the runs before
    std::int32_t last = first;
    for (int r = 0; r < kMostRuns && last < count && last - first < kMostValues; ++r) {
      Run run;
      if (!reader.next(last, count, run)) return false;
      if (lanes::index() == 0) scratch.runs[r] = run;
      last = run.end;
    }
    lanes::sync();
    inside &= gather<Number, kAligned>(scratch.runs, reader.words(), first, last, dictionary, out);
    first = last;
  }
  return lanes::all(inside);
}

// Whether levels of one bit are 1 for `count` values: none is null.
DPIF_HOST_DEVICE bool all_ones(PageBytes levels, std::int32_t count, Scratch& scratch) {
  RunReader reader(levels, 1, scratch.window);
  bool present = true;
  for (std::int32_t first = 0; first < count;) {
    Run run;
    if (!reader.next(first, count, run)) return false;
    if (run.stride == 0) {
      present &= bits_at(reader.words(), run.bits, run.width) == 1;
    } else {
      for (int i = first + 32 * lanes::index(); i < run.end; i += 32 * lanes::kCount) {
        const std::uint32_t width = run.end - i < 32 ? run.end - i : 32;
        present &= bits_at(reader.words(), run.bits + i, width) == ones(width);
      }
    }
    first = run.end;
  }
  return lanes::all(present);
}

// Steps over the levels: their length in 4 bytes, then they themselves.
DPIF_HOST_DEVICE bool pass_levels(PageBytes& bytes, std::int32_t count, Scratch& scratch) {
  if (bytes.size < 4) return false;
  std::uint32_t size = 0;
  for (int b = 0; b < 4; ++b) size |= std::uint32_t{bytes.begin[b]} << (8 * b);
  if (size > static_cast<std::uint32_t>(bytes.size - 4)) return false;
  const auto taken = static_cast<std::int32_t>(size);
  if (!all_ones({bytes.begin + 4, taken}, count, scratch)) return false;
  bytes = {bytes.begin + 4 + taken, bytes.size - 4 - taken};
  return true;
}

template <class Number>
DPIF_HOST_DEVICE bool decode_rare(parquet::PageKind kind, PageBytes bytes, std::int32_t count,
                                  Number* out) {
  return kind == parquet::PageKind::kDelta ? decode_delta(bytes, count, out)
                                           : decode_split(bytes, count, out);
}

template <class Number>
DPIF_HOST_DEVICE bool decode_usual(const Unit& unit, const parquet::Page& page, PageBytes bytes,
                                   Scratch& scratch, Number* to) {
  if (page.kind == parquet::PageKind::kPlain) {
    if (page.values > bytes.size / static_cast<int>(sizeof(Number))) return false;
    if (is_aligned<Number>(bytes.begin))
      copy_numbers<Number, true>(bytes.begin, page.values, to);
    else
      copy_numbers<Number, false>(bytes.begin, page.values, to);
    return true;
  }
  Dictionary dictionary{nullptr, 0};
  if (page.dictionary >= 0) {
    const parquet::Page& words = unit.pages[page.dictionary];
    dictionary = {bytes_of(unit, words).begin, static_cast<std::uint32_t>(words.values)};
  }
  return is_aligned<Number>(dictionary.numbers)
             ? look_up<Number, true>(bytes, page.values, dictionary, scratch, to)
             : look_up<Number, false>(bytes, page.values, dictionary, scratch, to);
}

// Writes a page of data, rare or not, to out [columns, rows]; false where it is not what it should
// be, or holds nulls: its rows may then be anything.
template <bool kRare, class Number>
DPIF_HOST_DEVICE bool decode_page(const Unit& unit, const parquet::Page& page, std::int64_t rows,
                                  Scratch& scratch, Number* out) {
  PageBytes bytes = bytes_of(unit, page);
  if (page.levels && !pass_levels(bytes, page.values, scratch)) return false;
  Number* to = out + page.column * rows + page.row;
  if constexpr (kRare)
    return decode_rare(page.kind, bytes, page.values, to);
  else
    return decode_usual(unit, page, bytes, scratch, to);
}

}  // namespace dpiframe::pages
