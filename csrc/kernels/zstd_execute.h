// A block's sequences, as many at once as there are lanes: each keeps one of them, and they copy
// together.
#pragma once

#include "kernels/zstd_copy.h"
#include "kernels/zstd_sequences.h"

namespace dpiframe::zstd {

// Where a sequence takes its literals and puts all; nothing for a lane that has none.
struct PlacedSequence {
  int literals_at = 0;
  int at = 0;
  int literals = 0;
  int match = 0;
  int offset = 0;
};

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

// Literals first. Then those matches whose source is there: it ends before the first match that is
// not; and so on until none is left.
DPIF_EVERYWHERE void execute(const BlockState& block, const PlacedSequence& mine) {
  copy_pieces(block.out, block.literals,
              {mine.literals_at, mine.at, mine.literals, mine.literals + 1});
  lanes::sync();
  const int to = mine.at + mine.literals;
  const int from = to - mine.offset;
  const int sure_end = from + smaller(mine.match, mine.offset);
  bool pending = mine.match > 0;
  for (int first = first_lane(pending); first >= 0; first = first_lane(pending)) {
    const int there = from_lane(to, first);  // what is before
    const bool ready = pending && sure_end <= there;
    copy_pieces(block.out, block.out, {from, to, ready ? mine.match : 0, mine.offset});
    lanes::sync();
    pending &= !ready;
  }
}

// Advances by a sequence; false where it takes or puts what is not there.
DPIF_EVERYWHERE bool place(const Sequence& sequence, BlockState& block, PlacedSequence& placed) {
  const int after_literals = block.at + sequence.literals;
  placed = {block.taken, block.at, sequence.literals, sequence.match,
            static_cast<int>(sequence.offset)};
  block.taken += sequence.literals;
  block.at = after_literals + sequence.match;
  return block.taken <= block.num_literals && block.at <= block.limit &&
         sequence.offset - 1 < static_cast<std::uint32_t>(after_literals);
}

DPIF_EVERYWHERE bool execute_all(SequenceReader& reader, int num, LastOffsets& last_offsets,
                                 BlockState& block) {
  for (int done = 0; done < num;) {
    PlacedSequence mine, placed;
    bool fine = true;
    const int stop = smaller(num, done + lanes::kCount);
    for (int lane = 0; done < stop; ++done, ++lane) {
      fine &= place(reader.next(last_offsets, done + 1 == num), block, placed);
      if (lane == lanes::index()) mine = placed;
    }
    if (!fine) return false;
    execute(block, mine);
  }
  return reader.at_end();
}

}  // namespace dpiframe::zstd
