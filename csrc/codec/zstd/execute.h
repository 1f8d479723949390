// A block's sequences, as many at once as there are lanes: each keeps one of them, and they copy
// together.
#pragma once

#include "codec/zstd/near.h"
#include "codec/zstd/sequences.h"

namespace dpiframe::zstd {

// How far a block has come. Literals are `literals`, and `out` starts with the frame: a match may
// be anywhere before.
struct BlockState {
  const std::uint8_t* literals;
  int num_literals;
  std::uint8_t* out;
  int limit;  // in `out`
  int taken;  // literals
  int at;     // in `out`
};

// For many bytes. Literals first. Then those matches whose source is there: it ends before the
// first match that is not; and so on until none is left.
DPIF_HOST_DEVICE void execute(const BlockState& block, const Sequence& mine, int taken, int at) {
  const int to = at + mine.literals, offset = static_cast<int>(mine.offset);
  const int from = to - offset;
  const int sure_end = from + smaller(mine.match, offset);
  bool pending = mine.match > 0;
  Piece piece{taken, at, mine.literals, mine.literals + 1};
  for (const std::uint8_t* source = block.literals;; source = block.out) {
    copy_pieces(block.out, source, piece);
    lanes::sync();
    const int first = first_lane(pending);
    if (first < 0) return;
    const int there = from_lane(to, first);  // what is before
    const bool ready = pending && sure_end <= there;
    piece = {from, to, ready ? mine.match : 0, offset};
    pending &= !ready;
  }
}

// Executes each lane's sequence, one behind the other, and advances; false where one takes or puts
// what is not there.
DPIF_HOST_DEVICE bool execute_in_order(BlockState& block, const Sequence& mine, Work& work) {
  const LaneSum literals = sum_lanes(mine.literals), bytes = sum_lanes(mine.literals + mine.match);
  const int taken = block.taken + literals.before, at = block.at + bytes.before;
  const BlockState before = block;
  block.taken += literals.all;
  block.at += bytes.all;
  const bool reaches =
      mine.match == 0 || mine.offset - 1 < static_cast<std::uint32_t>(at + mine.literals);
  if (!lanes::all(reaches) || block.taken > block.num_literals || block.at > block.limit)
    return false;
  if (bytes.all > kNear) {
    execute(block, mine, taken, at);
    return true;
  }
  const LaneSum matched{bytes.before - literals.before, bytes.all - literals.all};
  execute_near({before.literals + before.taken, before.out + before.at, literals, matched,
                bytes.before, bytes.before + mine.literals, static_cast<int>(mine.offset)},
               work);
  return true;
}

DPIF_HOST_DEVICE bool execute_all(SequenceReader& reader, int num, LastOffsets& last_offsets,
                                 BlockState& block, Work& work) {
  for (int done = 0; done < num;) {
    RawSequence raw{};
    const int stop = smaller(num, done + lanes::kCount);
    const bool have = done + lanes::index() < stop;
    for (int lane = 0; done < stop; ++done, ++lane) {
      const RawSequence next = reader.next(last_offsets, done + 1 == num);
      if (lane == lanes::index()) raw = next;
    }
    if (!execute_in_order(block, have ? raw.unpack() : Sequence{}, work)) return false;
  }
  return reader.at_end();
}

}  // namespace dpiframe::zstd
