// DEFLATE (RFC 1951), from which it was written, on the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/bytes.h"

namespace dpiframe::gzip {

// A table of a Huffman code: indexed by the next kBits bits, or by what follows them where a code
// is longer; then an entry says where its subtable begins. An entry is
//     value << 16 | flags | bits of the code << 8 | bits of the code and of the extra bits
// The value is a literal, or what the extra bits are added to.
template <int kBits, std::size_t kSize>
struct Table {
  static constexpr int kTableBits = kBits;
  std::array<std::uint32_t, kSize> entries;
  std::uint32_t sub_mask;
};

// Memory of a thread, kept from one page to the next.
struct Tables {
  // At most 288 codes are longer than the table's bits, two of them or more in a subtable.
  Table<11, 2048 + 144 * 16> literals;
  Table<9, 512 + 16 * 64> distances;
};

// Fills `out` up to some byte, and returns how many bytes were read and written;
// std::invalid_argument where the bytes do not begin with a stream, or it gives more.
struct Inflated {
  std::size_t read;
  std::size_t written;
};
Inflated inflate(Bytes compressed, std::span<std::uint8_t> out, Tables& tables);

}  // namespace dpiframe::gzip
