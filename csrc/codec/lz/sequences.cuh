// Sequences of literals and matches, whose compressed form is whole bytes: snappy, LZ4. The lanes
// of a warp decode a page together: all call the same functions with the same arguments.
//
// Where a sequence begins is known only from the one before it. So each lane reads what would begin
// at its byte, and all follow the chain through these by shuffles, which is a few times faster
// than to read one sequence after the other. Up to 32 sequences of few bytes are then put together
// in shared memory. A sequence of many bytes is copied by the whole warp.
//
// A `Format` says how a sequence is read:
//     Parsed parse(const Compressed&, int at, bool whole)   length 0: there is none at this byte
//     bool fits(const Parsed&, int at, int size)            by the rules of its end
// `whole`: read lengths to their end however long they are, not a few bytes of them.
#pragma once

#include "codec/batch_bytes.cuh"
#include "codec/copy.cuh"

namespace dpiframe::lz {

using namespace words;

constexpr int kMaxBytes = 1 << 30;  // of a page, compressed or not, so that an int holds all sums

// Bytes; zeros follow.
struct Compressed {
  const std::uint8_t* begin;
  int size;

  DPIF_HOST_DEVICE std::uint32_t byte(int at) const { return at < size ? begin[at] : 0; }
  // Begins to load what will be read soon, so that no lane waits for it.
  DPIF_HOST_DEVICE void prefetch(int at) const {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L1 [%0];" ::"l"(begin + smaller(at, size - 1)));
#else
    (void)at;
#endif
  }
  // `bytes` of them, up to 4, little-endian.
  DPIF_HOST_DEVICE std::uint32_t number(int at, int bytes) const {
    std::uint32_t value = 0;
    DPIF_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < bytes) value |= byte(at + i) << (8 * i);
    return value;
  }
};

// Copies `literals` literals, then `match` bytes from `offset` bytes before.
struct Sequence {
  int literals;
  int from;  // where the literals lie among the compressed bytes
  int match;
  int offset;
};

struct Parsed {
  Sequence sequence;
  int length;  // of its compressed form; 0: corrupt, cut off, or of longer lengths than are read

  DPIF_HOST_DEVICE int bytes() const { return sequence.literals + sequence.match; }
};

// The sequences of all lanes, in order: those behind the last one are empty.
struct Batch {
  Parsed mine{};
  int count = 0;
  int bytes = 0;   // that they give
  int length = 0;  // of their compressed form
};

DPIF_HOST_DEVICE Parsed shuffle(const Parsed& parsed, int lane) {
  return {
      {lanes::shuffle(parsed.sequence.literals, lane), lanes::shuffle(parsed.sequence.from, lane),
       lanes::shuffle(parsed.sequence.match, lane), lanes::shuffle(parsed.sequence.offset, lane)},
      lanes::shuffle(parsed.length, lane)};
}

constexpr int kAhead = 256;  // bytes; twice as many behind them are loaded ahead

// As many sequences from `at` on as there are lanes, and as give kBatchBytes; none where the first
// gives more, or is none.
template <class Format>
DPIF_HOST_DEVICE Batch read_batch(const Compressed& in, int at) {
  Batch batch;
  for (bool more = true; more && batch.count < lanes::kCount;) {
    const int window = at + batch.length;
    in.prefetch(window + kAhead + 2 * kAhead / lanes::kCount * lanes::index());
    const Parsed here = Format::parse(in, window + lanes::index(), false);
    // Both lengths in one number; 0 where there is no sequence for this batch.
    const bool is_short = here.sequence.literals <= kBatchBytes && here.bytes() <= kBatchBytes;
    const int lengths = is_short ? here.length << 16 | here.bytes() : 0;
    int next = 0, picked = -1;
    while (next < lanes::kCount && batch.count < lanes::kCount) {
      const int found = lanes::shuffle(lengths, next);
      const int length = found >> 16, bytes = found & 0xffff;
      more = length > 0 && bytes <= kBatchBytes - batch.bytes;
      if (!more) break;
      if (batch.count == lanes::index()) picked = next;
      ++batch.count;
      batch.bytes += bytes;
      next += length;
    }
    batch.length += next;
    const Parsed found = shuffle(here, picked < 0 ? 0 : picked);
    if (picked >= 0) batch.mine = found;
  }
  return batch;
}

// Puts the batch together from `out` on.
DPIF_HOST_DEVICE void put_together(const Compressed& in, const Batch& batch, int before,
                                   std::uint8_t* out, BatchBytes& workspace) {
  constexpr int kInFlight = 4;
  const Sequence& mine = batch.mine.sequence;
  for (int start = lanes::index(); start - lanes::index() < batch.bytes;
       start += kInFlight * lanes::kCount) {
    int source[kInFlight];
    std::uint8_t held[kInFlight] = {};
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int i = start + k * lanes::kCount;
      const int lane = lanes::owner(before, i);
      const int place = i - lanes::shuffle(before, lane);
      const int literals = lanes::shuffle(mine.literals, lane);
      const int from = lanes::shuffle(mine.from, lane), offset = lanes::shuffle(mine.offset, lane);
      source[k] = i;
      if (i >= batch.bytes) continue;
      if (place < literals) {
        held[k] = in.begin[from + place];
        continue;
      }
      const int matched = place - literals;
      source[k] = i - matched - offset + within(matched, offset);
      if (source[k] >= 0) continue;
      held[k] = out[source[k]];
      source[k] = i;
    }
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int i = start + k * lanes::kCount;
      if (i >= batch.bytes) continue;
      workspace.sources[i] = static_cast<std::uint16_t>(source[k]);
      workspace.bytes[i] = held[k];
    }
  }
  lanes::sync();
  write_batch(workspace, batch.bytes, out);
}

// One sequence, the same for all lanes.
DPIF_HOST_DEVICE void copy_sequence(const Compressed& in, const Sequence& sequence,
                                    std::uint8_t* out, int at) {
  copy_bytes(out + at, in.begin + sequence.from, sequence.literals);
  lanes::sync();
  const int to = at + sequence.literals;
  copy_long(out, out, {to - sequence.offset, to, sequence.match, sequence.offset});
  lanes::sync();
}

// The same on the host, where copies of 16 bytes at a time may go beyond their end.
inline void copy_on_host(const Compressed& in, const Sequence& sequence, std::uint8_t* out, int at,
                         int size) {
  constexpr int kStep = 16;
  const int to = at + sequence.literals;
  if (sequence.literals <= kStep && in.size - sequence.from >= kStep && size - at >= kStep)
    std::memcpy(out + at, in.begin + sequence.from, kStep);
  else if (sequence.literals > 0)
    std::memcpy(out + at, in.begin + sequence.from, sequence.literals);
  std::uint8_t* match = out + to;
  const std::uint8_t* from = match - sequence.offset;
  if (sequence.offset >= kStep && size - to - sequence.match >= kStep) {
    for (int i = 0; i < sequence.match; i += kStep) std::memcpy(match + i, from + i, kStep);
  } else {
    for (int i = 0; i < sequence.match; ++i) match[i] = from[i];  // may be just written
  }
}

// Whether a match begins in what is written by then.
DPIF_HOST_DEVICE bool reaches(const Sequence& sequence, int at) {
  return sequence.match == 0 || (sequence.offset > 0 && sequence.offset <= at + sequence.literals);
}

// Fills out[0, size) from the sequences behind `at`; false: they do not give exactly that, and
// `out` holds anything.
template <class Format>
DPIF_HOST_DEVICE bool decode(const Compressed& in, int at, std::uint8_t* out, int size,
                             BatchBytes& workspace) {
  int filled = 0;
  while (at < in.size) {
    if constexpr (lanes::kCount > 1) {
      const Batch batch = read_batch<Format>(in, at);
      if (batch.count > 0) {
        const lanes::PrefixSum bytes = lanes::prefix_sum(batch.mine.bytes());
        const int begin = filled + bytes.before;
        const bool good = lanes::index() >= batch.count || (reaches(batch.mine.sequence, begin) &&
                                                            Format::fits(batch.mine, begin, size));
        if (batch.bytes > size - filled || !lanes::all(good)) return false;
        put_together(in, batch, bytes.before, out + filled, workspace);
        filled += batch.bytes;
        at += batch.length;
        continue;
      }
    }
    const Parsed one = Format::parse(in, at, true);
    if (one.length == 0 || one.sequence.literals > size - filled ||
        one.sequence.match > size - filled - one.sequence.literals ||
        !reaches(one.sequence, filled) || !Format::fits(one, filled, size))
      return false;
#ifdef __CUDA_ARCH__
    copy_sequence(in, one.sequence, out, filled);
#else
    copy_on_host(in, one.sequence, out, filled, size);
#endif
    filled += one.bytes();
    at += one.length;
  }
  return filled == size;
}

}  // namespace dpiframe::lz
