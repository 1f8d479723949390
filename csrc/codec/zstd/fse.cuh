// FSE (finite state entropy) decoding tables: RFC 8878, 4.1.
#pragma once

#include "codec/zstd/bits.cuh"
#include "common/lanes.h"

namespace dpiframe::zstd {

// An entry, by state: its symbol; how many bits to read and add to `base` for the next state; how
// many extra bits follow the symbol in a stream of sequences.
struct FseEntry {
  std::uint32_t word;

  DPIF_HOST_DEVICE static FseEntry of(int symbol, int extra, int bits, int base) {
    return {static_cast<std::uint32_t>(symbol | bits << 8 | extra << 12 | base << 20)};
  }
  DPIF_HOST_DEVICE int symbol() const { return word & 0xff; }
  DPIF_HOST_DEVICE int bits() const { return word >> 8 & 0xf; }
  DPIF_HOST_DEVICE int extra() const { return word >> 12 & 0x1f; }
  DPIF_HOST_DEVICE int base() const { return word >> 20; }
};

struct FseShape {
  int log;  // accuracy log: the table has 1 << log states
  int symbols;
};

// A value from 0 to `most`: small values take one bit less.
DPIF_HOST_DEVICE int read_at_most(ForwardBits& bits, int most) {
  const int width = highest_bit(most);
  const int short_ones = (2 << width) - 1 - most;
  const int value = static_cast<int>(bits.peek(width + 1));
  const int low = value & ((1 << width) - 1);
  bits.skip(low < short_ones ? width : width + 1);
  if (low < short_ones) return low;
  return value == low ? value : value - short_ones;
}

// Consumes the distribution: how many states each symbol has, -1 for "less than one". All lanes
// read; one writes.
DPIF_HOST_DEVICE bool read_distribution(Input& input, int most_log, int most_symbols,
                                        std::int16_t* counts, FseShape& shape) {
  ForwardBits bits(input);
  shape = {5 + static_cast<int>(bits.read(4)), 0};
  if (shape.log > most_log) return false;
  const auto append = [&](int count) {
    if (lanes::index() == 0) counts[shape.symbols] = static_cast<std::int16_t>(count);
    ++shape.symbols;
  };
  int left = 1 << shape.log;
  while (left > 0) {
    if (shape.symbols >= most_symbols) return false;
    const int count = read_at_most(bits, left + 1) - 1;
    left -= count < 0 ? 1 : count;
    append(count);
    // After a symbol of probability 0: 2-bit repeat flags; 3 means that another flag follows.
    for (int more = count == 0 ? 3 : 0; more == 3;) {
      more = static_cast<int>(bits.read(2));
      if (more > most_symbols - shape.symbols) return false;
      for (int i = 0; i < more; ++i) append(0);
    }
  }
  lanes::sync();
  return input.skip(bits.bytes());
}

// Writes the symbol of each state to its entry's first byte. Symbols of less than one state get the
// last states; others are spread over the rest by a fixed step. The n-th symbol to be spread is
// noted in the third bytes, so that all lanes can spread at once.
DPIF_HOST_DEVICE void spread_symbols(std::uint32_t* table, const std::int16_t* counts,
                                     const FseShape& shape) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(table);
  const int size = 1 << shape.log;
  int strewn = 0, room = size;
  for (int symbol = 0; symbol < shape.symbols; ++symbol) {
    const int count = counts[symbol];
    if (count < 0 && --room >= 0 && lanes::index() == 0)
      bytes[4 * room] = static_cast<std::uint8_t>(symbol);
    for (int i = lanes::index(); i < count; i += lanes::kCount)
      bytes[4 * (strewn + i) + 2] = static_cast<std::uint8_t>(symbol);
    if (count > 0) strewn += count;
  }
  lanes::sync();
  const int step = (size >> 1) + (size >> 3) + 3;
  for (int i = lanes::index(), before = 0; i < size; i += lanes::kCount) {
    const int state = i * step & (size - 1);
    const lanes::Count free = lanes::count(state < room);
    if (state < room) bytes[4 * state] = bytes[4 * (before + free.before) + 2];
    before += free.all;
  }
  lanes::sync();
}

// Builds a table of 1 << shape.log entries, at least 32, from `counts`, which it overwrites;
// extra(symbol) is the number of extra bits of a symbol.
template <class Extra>
DPIF_HOST_DEVICE void build_table(std::uint32_t* table, std::int16_t* counts, const FseShape& shape,
                                  const Extra& extra) {
  spread_symbols(table, counts, shape);
  for (int i = lanes::index(); i < shape.symbols; i += lanes::kCount)
    if (counts[i] < 0) counts[i] = 1;
  lanes::sync();
  // The n-th state of a symbol with c states reads as many bits as make c + n at least the number
  // of states.
  const int size = 1 << shape.log;
  for (int i = lanes::index(); i < size; i += lanes::kCount) {
    const int symbol = table[i] & 0xff;
    const lanes::Count same = lanes::count_equal(symbol);
    const int number = counts[symbol] + same.before;
    lanes::sync();
    if (same.before == 0) counts[symbol] = static_cast<std::int16_t>(number + same.all);
    const int bits = shape.log - highest_bit(number);
    table[i] = FseEntry::of(symbol, extra(symbol), bits, (number << bits) - size).word;
    lanes::sync();
  }
}

// RLE mode: a table of one symbol, whose log is 0.
DPIF_HOST_DEVICE void build_table_of_one(std::uint32_t* table, int symbol, int extra) {
  if (lanes::index() == 0) table[0] = FseEntry::of(symbol, extra, 0, 0).word;
  lanes::sync();
}

}  // namespace dpiframe::zstd
