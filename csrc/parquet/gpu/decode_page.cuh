// Decodes one data page: numbers in one of the encodings, or indices into a dictionary page. Those
// of raw columns have decode_codes.cuh.
//
// All lanes of a warp work on one page. Up to 32 runs are parsed at a time and then their values
// are gathered, whichever run each belongs to: lanes own neighbouring values, so that stores are
// coalesced however short the runs are, and a lane has several loads in flight.
//
// Whatever a page holds, only its own bytes, its dictionary's and its rows of its column are
// accessed, and the rest of the aligned 4-byte words in which its first and last byte lie.
#pragma once

#include "parquet/encodings/byte_stream_split.cuh"
#include "parquet/encodings/delta_binary_packed.cuh"
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

// Writes the values [first, last) of the page, which are those of `runs`, from `out` on; returns
// whether their indices are inside the dictionary.
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
      if (i + k * lanes::kCount < last) out[i - first + k * lanes::kCount] = found[k];
  }
  return inside;
}

// Takes values that are indices: the width of one in a byte, then runs.
template <class Number, bool kAligned>
class IndexReader {
 public:
  // Of `count` values.
  DPIF_HOST_DEVICE IndexReader(PageBytes bytes, std::int32_t count, const Dictionary& dictionary,
                               Scratch& scratch)
      : width_(bytes.size > 0 ? bytes.begin[0] : 255),
        reader_({bytes.begin + 1, bytes.size - 1}, width_, scratch.window),
        count_(count),
        dictionary_(dictionary),
        runs_(scratch.runs) {}

  // Writes the next `count` of them; false where the bytes are none, or outside the dictionary.
  DPIF_HOST_DEVICE bool take(std::int32_t count, Number* out) {
    if (count == 0) return true;
    if (width_ > 32 || dictionary_.size == 0) return false;
    bool inside = true;
    for (const std::int32_t stop = next_ + count; next_ < stop;) {
      if (next_ == last_ && !find_runs()) return false;
      const std::int32_t last = last_ < stop ? last_ : stop;
      inside &= gather<Number, kAligned>(runs_, reader_.words(), next_, last, dictionary_, out);
      out += last - next_;
      next_ = last;
    }
    return lanes::all(inside);
  }

 private:
  // Finds the runs of the next values.
  DPIF_HOST_DEVICE bool find_runs() {
    lanes::sync();  // all are done with the runs before
    for (int r = 0; r < kMostRuns && last_ < count_ && last_ - next_ < kMostValues; ++r) {
      Run run;
      if (!reader_.next(last_, count_, run)) return false;
      if (lanes::index() == 0) runs_[r] = run;
      last_ = run.end;
    }
    lanes::sync();
    return true;
  }

  std::uint32_t width_;
  RunReader reader_;
  std::int32_t count_;
  Dictionary dictionary_;
  Run* runs_;
  std::int32_t next_ = 0;
  std::int32_t last_ = 0;  // of the runs that were found
};

// How many of `count` levels of one bit are 1: those of values that are no nulls. -1 where the
// bytes are no such levels.
DPIF_HOST_DEVICE std::int32_t count_present(PageBytes levels, std::int32_t count,
                                            Scratch& scratch) {
  RunReader reader(levels, 1, scratch.window);
  std::int32_t present = 0;  // as far as this lane counts them
  for (std::int32_t first = 0; first < count;) {
    Run run;
    if (!reader.next(first, count, run)) return -1;
    if (run.stride == 0) {
      const std::uint32_t level = bits_at(reader.words(), run.bits, run.width);
      if (level > 1) return -1;
      if (lanes::index() == 0 && level == 1) present += run.end - first;
    } else {
      for (int i = first + 32 * lanes::index(); i < run.end; i += 32 * lanes::kCount) {
        const std::uint32_t width = run.end - i < 32 ? run.end - i : 32;
        present += popcount(bits_at(reader.words(), run.bits + i, width));
      }
    }
    first = run.end;
  }
  return lanes::prefix_sum(present).all;
}

// Takes the levels from the front of a page: their length in 4 bytes, then they themselves.
DPIF_HOST_DEVICE bool split_levels(PageBytes& bytes, PageBytes& levels) {
  if (bytes.size < 4) return false;
  std::uint32_t size = 0;
  for (int b = 0; b < 4; ++b) size |= std::uint32_t{bytes.begin[b]} << (8 * b);
  if (size > static_cast<std::uint32_t>(bytes.size - 4)) return false;
  const auto taken = static_cast<std::int32_t>(size);
  levels = {bytes.begin + 4, taken};
  bytes = {bytes.begin + 4 + taken, bytes.size - 4 - taken};
  return true;
}

// Steps over levels that tell of no null.
DPIF_HOST_DEVICE bool pass_levels(PageBytes& bytes, std::int32_t count, Scratch& scratch) {
  PageBytes levels{nullptr, 0};
  return split_levels(bytes, levels) && count_present(levels, count, scratch) == count;
}

DPIF_HOST_DEVICE Dictionary dictionary_of(const Unit& unit, const parquet::Page& page) {
  if (page.dictionary < 0) return {nullptr, 0};
  const parquet::Page& words = unit.pages[page.dictionary];
  return {bytes_of(unit, words).begin, static_cast<std::uint32_t>(words.values)};
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
  const Dictionary dictionary = dictionary_of(unit, page);
  if (is_aligned<Number>(dictionary.numbers))
    return IndexReader<Number, true>(bytes, page.values, dictionary, scratch).take(page.values, to);
  return IndexReader<Number, false>(bytes, page.values, dictionary, scratch).take(page.values, to);
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
