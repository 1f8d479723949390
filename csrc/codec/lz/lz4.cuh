// LZ4's block format: lz4/lz4, doc/lz4_Block_format.md, from which it was written. A sequence is a
// token, literals, the offset and the length of a match; the last one has literals alone.
#pragma once

#include "codec/lz/sequences.cuh"

namespace dpiframe::lz {

struct Lz4 {
  // A block ends with as many literals; a match begins no later before its end.
  static constexpr int kLastLiterals = 5, kLastMatch = 12;

  DPIF_HOST_DEVICE static Parsed parse(const Compressed& in, int at, bool whole) {
    const std::uint32_t token = in.byte(at);
    int next = at + 1, literals = static_cast<int>(token >> 4),
        match = static_cast<int>(token & 15);
    if (literals == 15 && !read_length(in, whole, next, literals)) return {};
    if (next > in.size || literals > in.size - next) return {};
    const int from = next;
    next += literals;
    if (next == in.size) return {{literals, from, 0, 0}, next - at};
    if (in.size - next < 2 + 1 + kLastLiterals) return {};
    const auto offset = static_cast<int>(in.number(next, 2));
    next += 2;
    if (match == 15 && !read_length(in, whole, next, match)) return {};
    return {{literals, from, match + 4, offset}, next - at};
  }

  // As liblz4 has it, which refuses other ends.
  DPIF_HOST_DEVICE static bool fits(const Parsed& parsed, int at, int size) {
    const Sequence& sequence = parsed.sequence;
    if (sequence.match == 0) return true;  // at the end of the page
    return at + sequence.literals <= size - kLastMatch &&
           at + sequence.literals + sequence.match <= size - kLastLiterals;
  }

 private:
  // Adds bytes up to the first that is not 255; at most a few where not the `whole` is wanted.
  DPIF_HOST_DEVICE static bool read_length(const Compressed& in, bool whole, int& next,
                                           int& length) {
    constexpr int kFew = 3;
    const int stop = whole ? in.size : smaller(in.size, next + kFew);
    while (next < stop) {
      const std::uint32_t byte = in.byte(next++);
      length += static_cast<int>(byte);
      if (byte < 255) return true;
      if (length > kMaxBytes) return false;
    }
    return false;
  }
};

// Fills out[0, size) from a block; false: it does not give exactly that, and `out` holds anything.
DPIF_HOST_DEVICE bool decode_lz4(const Compressed& in, std::uint8_t* out, int size,
                                 BatchBytes& workspace) {
  return in.size > 0 && decode<Lz4>(in, 0, out, size, workspace);
}

}  // namespace dpiframe::lz
