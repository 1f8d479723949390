// Execution of a block's sequences (RFC 8878, 3.1.1.4), as many at once as there are lanes: each
// lane keeps one of them, and they copy together.
//
// Sequences of few bytes are put together in shared memory. Longer ones are copied in rounds, those
// first whose source is already written.
#pragma once

#include "codec/copy.cuh"
#include "codec/zstd/sequences.cuh"

namespace dpiframe::zstd {

// The sequences of all lanes, in order.
struct SequenceBatch {
  const std::uint8_t* literals;  // that they copy
  std::uint8_t* out;             // of their first byte; matches may begin before
  lanes::PrefixSum num_literals;
  lanes::PrefixSum num_matched;
  int at;      // offsets in `out`: of this lane's literals,
  int to;      // of its match,
  int offset;  // copied from so many bytes before
};

constexpr int kInFlight = 4;

DPIF_HOST_DEVICE void put_literals(const SequenceBatch& batch, Workspace& workspace) {
  const int total = batch.num_literals.all;
  for (int start = lanes::index(); start - lanes::index() < total;
       start += kInFlight * lanes::kCount) {
    std::uint8_t held[kInFlight] = {};
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k)
      if (start + k * lanes::kCount < total) held[k] = batch.literals[start + k * lanes::kCount];
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int i = start + k * lanes::kCount;
      const int lane = lanes::owner(batch.num_literals.before, i);
      const int to = i + lanes::shuffle(batch.at - batch.num_literals.before, lane);
      if (i >= total) continue;
      workspace.batch.bytes[to] = held[k];
      workspace.batch.sources[to] = static_cast<std::uint16_t>(to);
    }
  }
}

// Bytes from before the batch are loaded; for others their source in the batch is noted.
DPIF_HOST_DEVICE void put_matches(const SequenceBatch& batch, Workspace& workspace) {
  const int total = batch.num_matched.all;
  for (int start = lanes::index(); start - lanes::index() < total;
       start += kInFlight * lanes::kCount) {
    int to[kInFlight], from[kInFlight];
    std::uint8_t held[kInFlight] = {};
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int i = start + k * lanes::kCount;
      const int lane = lanes::owner(batch.num_matched.before, i);
      const int at = i - lanes::shuffle(batch.num_matched.before, lane);
      const int match = lanes::shuffle(batch.to, lane), offset = lanes::shuffle(batch.offset, lane);
      to[k] = match + at;
      from[k] = i < total ? match - offset + within(at, offset) : 0;
      if (from[k] < 0) held[k] = batch.out[from[k]];
    }
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      if (start + k * lanes::kCount >= total) continue;
      workspace.batch.sources[to[k]] = static_cast<std::uint16_t>(from[k] < 0 ? to[k] : from[k]);
      if (from[k] < 0) workspace.batch.bytes[to[k]] = held[k];
    }
  }
}

// For up to kBatchBytes bytes.
DPIF_HOST_DEVICE void execute_in_shared_memory(const SequenceBatch& batch, Workspace& workspace) {
  put_literals(batch, workspace);
  put_matches(batch, workspace);
  lanes::sync();
  write_batch(workspace.batch, batch.num_literals.all + batch.num_matched.all, batch.out);
}

// Progress in a block. `out` begins with the frame, since a match may begin in an earlier block.
struct BlockState {
  const std::uint8_t* literals;
  int num_literals;
  std::uint8_t* out;
  int limit;  // in `out`
  int taken;  // literals used
  int at;     // in `out`
};

// For many bytes: copies all literals, then in rounds the matches whose source is written, which is
// so if it ends before the first match that is still pending.
DPIF_HOST_DEVICE void execute(const BlockState& block, const Sequence& mine, int taken, int at) {
  const int to = at + mine.literals, offset = static_cast<int>(mine.offset);
  const int from = to - offset;
  const int sure_end = from + smaller(mine.match, offset);
  bool pending = mine.match > 0;
  CopyRange range{taken, at, mine.literals, mine.literals + 1};
  for (const std::uint8_t* source = block.literals;; source = block.out) {
    copy_ranges(block.out, source, range);
    lanes::sync();
    const int first = lanes::first(pending);
    if (first < 0) return;
    const int there = lanes::shuffle(to, first);  // what is before
    const bool ready = pending && sure_end <= there;
    range = {from, to, ready ? mine.match : 0, offset};
    pending &= !ready;
  }
}

// Executes the lanes' sequences in order and advances `block`; false if one exceeds the literals,
// the block, or the bytes written so far.
DPIF_HOST_DEVICE bool execute_in_order(BlockState& block, const Sequence& mine,
                                       Workspace& workspace) {
  const lanes::PrefixSum literals = lanes::prefix_sum(mine.literals),
                         bytes = lanes::prefix_sum(mine.literals + mine.match);
  const int taken = block.taken + literals.before, at = block.at + bytes.before;
  const BlockState before = block;
  block.taken += literals.all;
  block.at += bytes.all;
  const bool reaches =
      mine.match == 0 || mine.offset - 1 < static_cast<std::uint32_t>(at + mine.literals);
  if (!lanes::all(reaches) || block.taken > block.num_literals || block.at > block.limit)
    return false;
  if (bytes.all > kBatchBytes) {
    execute(block, mine, taken, at);
    return true;
  }
  const lanes::PrefixSum matched{bytes.before - literals.before, bytes.all - literals.all};
  execute_in_shared_memory(
      {before.literals + before.taken, before.out + before.at, literals, matched, bytes.before,
       bytes.before + mine.literals, static_cast<int>(mine.offset)},
      workspace);
  return true;
}

DPIF_HOST_DEVICE bool execute_all(SequenceReader& reader, int num, RepeatOffsets& repeat_offsets,
                                  BlockState& block, Workspace& workspace) {
  for (int done = 0; done < num;) {
    RawSequence raw{};
    const int stop = smaller(num, done + lanes::kCount);
    const bool have = done + lanes::index() < stop;
    for (int lane = 0; done < stop; ++done, ++lane) {
      const RawSequence next = reader.next(repeat_offsets, done + 1 == num);
      if (lane == lanes::index()) raw = next;
    }
    if (!execute_in_order(block, have ? raw.unpack() : Sequence{}, workspace)) return false;
  }
  return reader.at_end();
}

}  // namespace dpiframe::zstd
