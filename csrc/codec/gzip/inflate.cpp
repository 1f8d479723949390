#include "codec/gzip/inflate.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace dpiframe::gzip {
namespace {

constexpr int kMostBits = 15;  // of a code
constexpr std::size_t kNumLiterals = 288, kNumDistances = 32, kNumLengths = 19;
constexpr std::size_t kEndOfBlock = 256;

constexpr std::uint32_t kLiteral = 1u << 12, kSubtable = 1u << 13, kEnd = 1u << 14;
constexpr std::uint32_t kInvalid = 1u << 15 | kEnd;  // takes no bits, and ends the fast loop

void check(bool fits) {
  DPIF_CHECK(fits, "a gzip page is corrupt");
}

// Bits, the lowest of a byte first; zeros follow the last one.
class Bits {
 public:
  explicit Bits(Bytes bytes) : next_(bytes.data()), begin_(next_), end_(next_ + bytes.size()) {}

  // Afterwards at least 56 bits are there.
  void refill() {
    if (end_ - next_ >= 8) {
      std::uint64_t word;
      std::memcpy(&word, next_, sizeof(word));
      bits_ |= word << count_;
      next_ += (63 - count_) >> 3;
      count_ |= 56;
      return;
    }
    for (; count_ < 56; count_ += 8) {
      if (next_ < end_)
        bits_ |= std::uint64_t{*next_++} << count_;
      else
        check(++behind_ <= 16);
    }
  }
  std::uint64_t peek() const { return bits_; }
  void skip(unsigned count) {
    bits_ >>= count;
    count_ -= count;
  }
  // Up to 32 of them.
  std::uint32_t read(unsigned count) {
    refill();
    const auto value = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << count) - 1));
    skip(count);
    return value;
  }
  // The bytes behind the byte of the last bit read.
  Bytes rest() {
    const auto whole = count_ / 8;
    check(behind_ <= whole);
    return {next_ - (whole - behind_), end_};
  }
  void go_on_at(const std::uint8_t* next) {
    next_ = next;
    bits_ = count_ = behind_ = 0;
  }
  std::size_t bytes_read() { return rest().data() - begin_; }

 private:
  const std::uint8_t* next_;
  const std::uint8_t* begin_;
  const std::uint8_t* end_;
  std::uint64_t bits_ = 0;
  unsigned count_ = 0;
  unsigned behind_ = 0;  // bytes of zeros that were taken behind the end
};

std::uint32_t reversed(std::uint32_t code, int bits) {
  std::uint32_t out = 0;
  for (int i = 0; i < bits; ++i) out |= (code >> i & 1) << (bits - 1 - i);
  return out;
}

// Fills a table from the bits of each symbol's code; `entry_of(symbol)` has value, flags and extra
// bits. As in zlib, a code need not be complete if it is of one symbol, or of none.
template <class Table, class EntryOf>
void fill(Table& table, std::span<const std::uint8_t> lengths, EntryOf entry_of) {
  std::array<std::uint32_t, kMostBits + 2> next_code{};
  std::array<int, kMostBits + 1> counts{};
  for (const std::uint8_t length : lengths) ++counts[length];
  counts[0] = 0;
  int left = 1, longest = 0;
  for (int bits = 1; bits <= kMostBits; ++bits) {
    left = 2 * left - counts[bits];
    check(left >= 0);
    if (counts[bits] > 0) longest = bits;
    next_code[bits + 1] = (next_code[bits] + counts[bits]) << 1;
  }
  check(left == 0 || longest <= 1);
  constexpr int kBits = Table::kTableBits;
  constexpr std::size_t kFirst = std::size_t{1} << kBits;
  const int sub_bits = std::max(0, longest - kBits);
  table.sub_mask = (1u << sub_bits) - 1;
  std::fill_n(table.entries.begin(), kFirst, kInvalid);
  std::size_t end = kFirst;
  for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
    const int bits = lengths[symbol];
    if (bits == 0) continue;
    const std::uint32_t code = reversed(next_code[bits]++, bits);
    const std::uint32_t entry = entry_of(symbol) + (bits << 8 | bits);
    if (bits <= kBits) {
      for (std::size_t i = code; i < kFirst; i += std::size_t{1} << bits) table.entries[i] = entry;
      continue;
    }
    std::uint32_t& first = table.entries[code & (kFirst - 1)];
    if ((first & kSubtable) == 0) {
      first = static_cast<std::uint32_t>(end) << 16 | kSubtable;
      end += std::size_t{1} << sub_bits;
      std::fill(table.entries.begin() + (first >> 16), table.entries.begin() + end, kInvalid);
    }
    const std::size_t begin = first >> 16;
    for (std::size_t i = code >> kBits; i <= table.sub_mask; i += std::size_t{1} << (bits - kBits))
      table.entries[begin + i] = entry;
  }
}

template <class Table>
std::uint32_t look_up(const Table& table, std::uint64_t bits) {
  constexpr int kBits = Table::kTableBits;
  const std::uint32_t entry = table.entries[bits & ((1u << kBits) - 1)];
  if ((entry & kSubtable) == 0) [[likely]]
    return entry;
  return table.entries[(entry >> 16) + (bits >> kBits & table.sub_mask)];
}

std::uint32_t with_extra(std::uint32_t base, std::uint32_t extra) {
  return base << 16 | extra;
}

std::uint32_t literals_entry(std::size_t symbol) {
  static constexpr std::array<std::uint16_t, 29> kBases{3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                        15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                        67, 83, 99, 115, 131, 163, 195, 227, 258};
  if (symbol < kEndOfBlock) return static_cast<std::uint32_t>(symbol) << 16 | kLiteral;
  if (symbol == kEndOfBlock) return kEnd;
  const std::size_t i = symbol - kEndOfBlock - 1;
  if (i >= kBases.size()) return kInvalid;
  return with_extra(kBases[i], i < 8 || i == 28 ? 0 : static_cast<std::uint32_t>(i / 4 - 1));
}

std::uint32_t distance_entry(std::size_t symbol) {
  if (symbol >= 30) return kInvalid;
  if (symbol < 4) return with_extra(static_cast<std::uint32_t>(symbol + 1), 0);
  const auto extra = static_cast<std::uint32_t>(symbol / 2 - 1);
  return with_extra((2 + static_cast<std::uint32_t>(symbol % 2)) * (1u << extra) + 1, extra);
}

void use_fixed_codes(Tables& tables) {
  std::array<std::uint8_t, kNumLiterals> literals;
  for (std::size_t i = 0; i < literals.size(); ++i)
    literals[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  std::array<std::uint8_t, kNumDistances> distances;
  distances.fill(5);
  fill(tables.literals, literals, literals_entry);
  fill(tables.distances, distances, distance_entry);
}

void read_codes(Bits& bits, Tables& tables) {
  static constexpr std::array<std::uint8_t, kNumLengths> kOrder{16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                                11, 4,  12, 3, 13, 2, 14, 1, 15};
  const std::size_t num_literals = bits.read(5) + 257, num_distances = bits.read(5) + 1,
                    num_lengths = bits.read(4) + 4;
  check(num_literals <= 286 && num_distances <= 30);
  std::array<std::uint8_t, kNumLengths> code_lengths{};
  for (std::size_t i = 0; i < num_lengths; ++i)
    code_lengths[kOrder[i]] = static_cast<std::uint8_t>(bits.read(3));
  fill(tables.distances, code_lengths,
       [](std::size_t symbol) { return static_cast<std::uint32_t>(symbol) << 16; });
  // zlib wants this one to be complete.
  check(std::ranges::count(code_lengths, 0) < std::ssize(code_lengths) - 1);
  std::array<std::uint8_t, kNumLiterals + kNumDistances> lengths{};
  const std::size_t num = num_literals + num_distances;
  for (std::size_t i = 0; i < num;) {
    bits.refill();
    const std::uint32_t entry = look_up(tables.distances, bits.peek());
    check((entry & kEnd) == 0);
    bits.skip(entry & 0xff);
    const std::uint32_t symbol = entry >> 16;
    if (symbol < 16) {
      lengths[i++] = static_cast<std::uint8_t>(symbol);
      continue;
    }
    check(symbol != 16 || i > 0);
    const std::uint8_t repeated = symbol == 16 ? lengths[i - 1] : 0;
    const std::size_t times = symbol == 16   ? 3 + bits.read(2)
                              : symbol == 17 ? 3 + bits.read(3)
                                             : 11 + bits.read(7);
    check(times <= num - i);
    std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(i), times, repeated);
    i += times;
  }
  check(lengths[kEndOfBlock] > 0);
  const std::span<const std::uint8_t> all(lengths);
  fill(tables.literals, all.first(num_literals), literals_entry);
  fill(tables.distances, all.subspan(num_literals, num_distances), distance_entry);
}

std::uint32_t value_of(std::uint32_t entry, std::uint64_t bits) {
  const std::uint32_t code = entry >> 8 & 15, all = entry & 0xff;
  return (entry >> 16) + static_cast<std::uint32_t>(bits >> code & ((1u << (all - code)) - 1));
}

// Copies that may write beyond their end do so by this much at most.
constexpr std::size_t kStep = 16;

void copy_match(std::span<std::uint8_t> out, std::size_t filled, std::size_t offset,
                std::size_t size) {
  std::uint8_t* to = out.data() + filled;
  const std::uint8_t* from = to - offset;
  if (offset >= kStep && out.size() - filled - size >= kStep) {
    for (std::size_t i = 0; i < size; i += kStep) std::memcpy(to + i, from + i, kStep);
  } else if (offset == 1) {
    std::memset(to, *from, size);
  } else {
    for (std::size_t i = 0; i < size; ++i) to[i] = from[i];  // what is copied may be just written
  }
}

// A block of literals and matches. A literal takes 15 bits at most, a length 20, a distance 28.
void inflate_block(Bits& bits, const Tables& tables, std::span<std::uint8_t> out,
                   std::size_t& filled) {
  for (;;) {
    bits.refill();
    std::uint32_t entry = look_up(tables.literals, bits.peek());
    if (out.size() - filled >= 2 && (entry & kLiteral) != 0) {
      out[filled++] = static_cast<std::uint8_t>(entry >> 16);
      bits.skip(entry & 0xff);
      entry = look_up(tables.literals, bits.peek());
      if ((entry & kLiteral) != 0) {
        out[filled++] = static_cast<std::uint8_t>(entry >> 16);
        bits.skip(entry & 0xff);
        entry = look_up(tables.literals, bits.peek());
      }
    }
    if ((entry & kLiteral) != 0) {
      check(filled < out.size());
      out[filled++] = static_cast<std::uint8_t>(entry >> 16);
      bits.skip(entry & 0xff);
      continue;
    }
    if ((entry & kEnd) != 0) {
      check((entry & kInvalid) != kInvalid);
      return bits.skip(entry & 0xff);
    }
    const std::size_t size = value_of(entry, bits.peek());
    bits.skip(entry & 0xff);
    bits.refill();
    const std::uint32_t far = look_up(tables.distances, bits.peek());
    check((far & kEnd) == 0);
    const std::size_t offset = value_of(far, bits.peek());
    bits.skip(far & 0xff);
    check(offset <= filled && size <= out.size() - filled);
    copy_match(out, filled, offset, size);
    filled += size;
  }
}

void copy_stored(Bits& bits, std::span<std::uint8_t> out, std::size_t& filled) {
  const Bytes rest = bits.rest();
  check(rest.size() >= 4);
  const std::size_t size = rest[0] | rest[1] << 8, inverted = rest[2] | rest[3] << 8;
  check((size ^ inverted) == 0xffff && size <= rest.size() - 4 && size <= out.size() - filled);
  if (size > 0) std::memcpy(out.data() + filled, rest.data() + 4, size);
  filled += size;
  bits.go_on_at(rest.data() + 4 + size);
}

}  // namespace

Inflated inflate(Bytes compressed, std::span<std::uint8_t> out, Tables& tables) {
  Bits bits(compressed);
  std::size_t filled = 0;
  for (bool last = false; !last;) {
    last = bits.read(1) != 0;
    const std::uint32_t kind = bits.read(2);
    check(kind < 3);
    if (kind == 0) {
      copy_stored(bits, out, filled);
      continue;
    }
    if (kind == 1)
      use_fixed_codes(tables);
    else
      read_codes(bits, tables);
    inflate_block(bits, tables, out, filled);
  }
  return {bits.bytes_read(), filled};
}

}  // namespace dpiframe::gzip
