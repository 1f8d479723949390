// Copies and fills by all lanes together. Several loads are in flight before the stores that need
// them, since latency is the bound on a GPU.
#pragma once

#include "codec/words.cuh"

namespace dpiframe::words {

// 8 bytes from `at`, by two aligned loads where these lie inside [front, end).
DPIF_HOST_DEVICE std::uint64_t load_unaligned(const std::uint8_t* at, const std::uint8_t* front,
                                              const std::uint8_t* end) {
  const int skew = offset_in_word(at, 8);
  if (skew == 0) return load_word<std::uint64_t>(at);
  if (at - front >= skew && end - at >= 16 - skew) {
    const auto low = load_word<std::uint64_t>(at - skew);
    const auto high = load_word<std::uint64_t>(at - skew + 8);
    return low >> (8 * skew) | high << (64 - 8 * skew);
  }
  std::uint64_t value = 0;
  DPIF_NO_UNROLL
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return value;
}

// The aligned words of 8 bytes in [to, to + size), as offsets from `to`.
struct Words {
  int begin;
  int end;

  DPIF_HOST_DEVICE Words(const std::uint8_t* to, int size)
      : begin(smaller(size, -offset_in_word(to, 8) & 7)), end(begin + (size - begin) / 8 * 8) {}
};

// The two do not overlap.
DPIF_HOST_DEVICE void copy_bytes(std::uint8_t* to, const std::uint8_t* from, int size) {
  constexpr int kInFlight = 4, kStep = 8 * lanes::kCount;
  const Words words(to, size);
  for (int i = lanes::index(); i < words.begin; i += lanes::kCount) to[i] = from[i];
  for (int i = words.begin + 8 * lanes::index(); i < words.end; i += kInFlight * kStep) {
    std::uint64_t held[kInFlight] = {};
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k)
      if (i + k * kStep < words.end)
        held[k] = load_unaligned(from + i + k * kStep, from, from + size);
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k)
      if (i + k * kStep < words.end) store_word(to + i + k * kStep, held[k]);
  }
  for (int i = words.end + lanes::index(); i < size; i += lanes::kCount) to[i] = from[i];
}

DPIF_HOST_DEVICE void fill_bytes(std::uint8_t* to, std::uint8_t byte, int size) {
  const Words words(to, size);
  for (int i = lanes::index(); i < words.begin; i += lanes::kCount) to[i] = byte;
  for (int i = words.begin + 8 * lanes::index(); i < words.end; i += 8 * lanes::kCount)
    store_word(to + i, 0x0101010101010101u * byte);
  for (int i = words.end + lanes::index(); i < size; i += lanes::kCount) to[i] = byte;
}

// The bytes that a lane copies, as offsets. A size above `period` repeats the `period` bytes that
// end at `to`: a match that overlaps its source.
struct CopyRange {
  int from;
  int to;
  int size;
  int period;
};

DPIF_HOST_DEVICE CopyRange shuffle(const CopyRange& range, int lane) {
  return {lanes::shuffle(range.from, lane), lanes::shuffle(range.to, lane),
          lanes::shuffle(range.size, lane), lanes::shuffle(range.period, lane)};
}

// Each step copies all bytes that exist by then, a multiple of the period.
DPIF_HOST_DEVICE void copy_long(std::uint8_t* to, const std::uint8_t* from,
                                const CopyRange& range) {
  int there = range.period;
  for (int done = 0; done < range.size;) {
    const int step = smaller(range.size - done, there);
    copy_bytes(to + range.to + done, from + range.from, step);
    done += step;
    if (done == range.size) return;
    lanes::sync();
    there *= 2;
  }
}

// Groups of lanes share a range, a byte each, so that accesses are coalesced.
constexpr int kGroup = lanes::kCount < 8 ? 1 : 8;
constexpr int kGroups = lanes::kCount / kGroup;
constexpr int kGroupStep = 2 * kGroup;
constexpr int kShort = 4 * kGroupStep;

DPIF_HOST_DEVICE int within(int at, int period) {
  return at < period ? at : at % period;
}

// Bytes [start, start + kGroupStep) of all lanes' ranges: all loads precede all stores.
DPIF_HOST_DEVICE void copy_step(std::uint8_t* to, const std::uint8_t* from, const CopyRange& mine,
                                int start) {
  const int group = lanes::index() / kGroup, place = start + lanes::index() % kGroup;
  std::uint8_t held[2 * kGroup] = {};
  DPIF_UNROLL
  for (int k = 0; k < kGroup; ++k) {
    const CopyRange range = shuffle(mine, k * kGroups + group);
    for (int half = 0; half < 2; ++half) {
      const int at = place + half * kGroup;
      if (at < range.size) held[2 * k + half] = from[range.from + within(at, range.period)];
    }
  }
  DPIF_UNROLL
  for (int k = 0; k < kGroup; ++k) {
    const int size = lanes::shuffle(mine.size, k * kGroups + group);
    std::uint8_t* start_of = to + lanes::shuffle(mine.to, k * kGroups + group);
    for (int half = 0; half < 2; ++half) {
      const int at = place + half * kGroup;
      if (at < size) start_of[at] = held[2 * k + half];
    }
  }
}

// The same range for all lanes.
DPIF_HOST_DEVICE void copy_one(std::uint8_t* to, const std::uint8_t* from, const CopyRange& range) {
  if (lanes::kCount == 1 || range.size > kShort) return copy_long(to, from, range);
  constexpr int kInFlight = kShort / lanes::kCount;
  std::uint8_t held[kInFlight] = {};
  DPIF_UNROLL
  for (int k = 0; k < kInFlight; ++k) {
    const int at = lanes::index() + k * lanes::kCount;
    if (at < range.size) held[k] = from[range.from + within(at, range.period)];
  }
  DPIF_UNROLL
  for (int k = 0; k < kInFlight; ++k) {
    const int at = lanes::index() + k * lanes::kCount;
    if (at < range.size) to[range.to + at] = held[k];
  }
}

// Copies every lane's range. None reads what another one writes.
DPIF_HOST_DEVICE void copy_ranges(std::uint8_t* to, const std::uint8_t* from,
                                  const CopyRange& mine) {
  constexpr int kFew = 3;
  bool apart = mine.size > kShort;
  const lanes::Count small = lanes::count(mine.size > 0 && !apart);
  if (small.all > kFew) {
    CopyRange range = mine;
    if (apart) range.size = 0;
    for (int start = 0; lanes::first(range.size > start) >= 0; start += kGroupStep)
      copy_step(to, from, range, start);
  } else {
    apart = mine.size > 0;
  }
  for (int lane = lanes::first(apart); lane >= 0; lane = lanes::first(apart)) {
    copy_one(to, from, shuffle(mine, lane));
    apart &= lanes::index() != lane;
  }
}

}  // namespace dpiframe::words
