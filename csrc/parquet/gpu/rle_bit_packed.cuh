// Parses RLE/bit-packed hybrid runs on the GPU: a header, then one repeated value or packed values.
//
// All lanes parse the same headers, since a run's offset is known only from the header before it:
// latency is the bound. Headers are read from a window of the bytes in shared memory, which one
// round of loads fills.
#pragma once

#include "parquet/page_bytes.cuh"

namespace dpiframe::pages {

// A run of both kinds: index i of the page has the `width` bits from `bits` + i * `stride` on,
// counted modulo 2^32 from the first aligned word. An RLE run has a stride of 0; indices without
// bits are said to be at the first word, which can be read.
struct alignas(16) Run {
  std::uint32_t bits;
  std::int32_t end;  // of its indices in the page
  std::uint32_t stride;
  std::uint32_t width;  // 0 to 32
};

constexpr int kWindowWords = 128;
constexpr int kMostRuns = 32;  // that are found ahead of their values

// Shared memory of a warp.
struct Scratch {
  Run runs[kMostRuns];
  std::uint32_t window[kWindowWords];
};

class RunReader {
 public:
  DPIF_HOST_DEVICE RunReader(PageBytes bytes, std::uint32_t width, std::uint32_t* window)
      : words_(bytes.begin - misalignment(bytes.begin)),
        at_(misalignment(bytes.begin)),
        end_(at_ + bytes.size),
        width_(width),
        window_(window) {}

  // The first aligned word.
  DPIF_HOST_DEVICE const std::uint8_t* words() const { return words_; }

  // Takes the run of the indices from `first` on, `count` of the page at most; false where the
  // bytes are not one.
  DPIF_HOST_DEVICE bool next(std::int32_t first, std::int32_t count, Run& run) {
    std::uint32_t head = 0;
    if (!header(head)) return false;
    const bool packed = (head & 1) != 0;
    const auto longest = static_cast<std::uint32_t>(parquet::kMaxPageSize);
    const std::uint32_t length = smaller(head >> 1, longest);
    const std::uint32_t left = end_ - at_;
    const std::uint32_t taken = smaller(packed ? 8 * length : length, count - first);
    const std::uint32_t value_bytes = (width_ + 7) / 8;
    run.stride = packed ? width_ : 0;
    run.width = packed ? width_ : 8 * value_bytes;
    run.bits = width_ == 0 ? 0 : 8 * static_cast<std::uint32_t>(at_) - first * run.stride;
    run.end = first + static_cast<std::int32_t>(taken);
    // Some writers leave out what fills the last group.
    const std::uint32_t needed = packed ? (taken * width_ + 7) / 8 : value_bytes;
    const std::uint32_t whole = packed ? smaller(length * width_, left) : value_bytes;
    at_ += static_cast<std::int32_t>(whole);
    return length > 0 && needed <= left;
  }

 private:
  DPIF_HOST_DEVICE static std::uint32_t smaller(std::uint32_t a, std::uint32_t b) {
    return a < b ? a : b;
  }

  // A varint; nearly all are of one byte.
  DPIF_HOST_DEVICE bool header(std::uint32_t& head) {
    if (at_ >= end_) return false;
    head = byte();
    return head < 0x80 || long_header(head);
  }

  DPIF_HOST_DEVICE bool long_header(std::uint32_t& head) {
    std::uint64_t value = head & 0x7f;
    for (int shift = 7; shift < 64 && at_ < end_; shift += 7) {
      const std::uint32_t next = byte();
      value |= std::uint64_t{next & 0x7f} << shift;
      head = static_cast<std::uint32_t>(value);
      if (next < 0x80) return value == head;
    }
    return false;
  }

  DPIF_HOST_DEVICE std::uint32_t byte() {
    if (static_cast<std::uint32_t>(at_ - window_begin_) >= 4 * kWindowWords) fill_window();
    return reinterpret_cast<const std::uint8_t*>(window_)[at_++ - window_begin_];
  }

  DPIF_HOST_DEVICE void fill_window() {
    window_begin_ = at_ / 4 * 4;
    lanes::sync();  // all are done with what it held
    for (int word = lanes::index(); word < kWindowWords; word += lanes::kCount) {
      const int at = window_begin_ + 4 * word;
      if (at < end_) window_[word] = load<std::uint32_t>(words_ + at);
    }
    lanes::sync();
  }

  const std::uint8_t* words_;
  std::int32_t at_;  // both from `words_` on
  std::int32_t end_;
  std::uint32_t width_;
  std::uint32_t* window_;
  std::int32_t window_begin_ = -4 * kWindowWords;  // nothing is in it
};

}  // namespace dpiframe::pages
