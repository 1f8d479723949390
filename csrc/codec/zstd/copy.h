// Copies and fills by all lanes together. Loads come several before the stores that need them: on a
// GPU it is their latency that counts.
#pragma once

#include "codec/zstd/bits.cuh"
#include "codec/zstd/lanes.cuh"

namespace dpiframe::zstd {

// 8 bytes from `at`, by aligned words where these are inside [front, end), as the bytes are.
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

// Where the words of 8 bytes are that lie in [to, to + size).
struct Words {
  int begin;
  int end;

  DPIF_HOST_DEVICE Words(const std::uint8_t* to, int size)
      : begin(smaller(size, -offset_in_word(to, 8) & 7)), end(begin + (size - begin) / 8 * 8) {}
};

// The two do not overlap.
DPIF_HOST_DEVICE void copy_bytes(std::uint8_t* to, const std::uint8_t* from, int size) {
  constexpr int kFlying = 4, kStep = 8 * lanes::kCount;
  const Words words(to, size);
  for (int i = lanes::index(); i < words.begin; i += lanes::kCount) to[i] = from[i];
  for (int i = words.begin + 8 * lanes::index(); i < words.end; i += kFlying * kStep) {
    std::uint64_t held[kFlying] = {};
    DPIF_UNROLL
    for (int k = 0; k < kFlying; ++k)
      if (i + k * kStep < words.end)
        held[k] = load_unaligned(from + i + k * kStep, from, from + size);
    DPIF_UNROLL
    for (int k = 0; k < kFlying; ++k)
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

// Bytes that a lane wants copied; from [from] to [to] of memory that all know. What is more than
// `period` repeats those before, which are the `period` bytes that end at `to`.
struct Piece {
  int from;
  int to;
  int size;
  int period;
};

DPIF_HOST_DEVICE Piece from_lane(const Piece& piece, int lane) {
  return {from_lane(piece.from, lane), from_lane(piece.to, lane), from_lane(piece.size, lane),
          from_lane(piece.period, lane)};
}

// Each step copies all that there is by then, which is a multiple of the period.
DPIF_HOST_DEVICE void copy_long(std::uint8_t* to, const std::uint8_t* from, const Piece& piece) {
  int there = piece.period;
  for (int done = 0; done < piece.size;) {
    const int step = smaller(piece.size - done, there);
    copy_bytes(to + piece.to + done, from + piece.from, step);
    done += step;
    if (done == piece.size) return;
    lanes::sync();
    there *= 2;
  }
}

// Some lanes share a piece, a byte each, so that what they touch lies side by side.
constexpr int kTeam = lanes::kCount < 8 ? 1 : 8;
constexpr int kTeams = lanes::kCount / kTeam;
constexpr int kTeamStep = 2 * kTeam;
constexpr int kShort = 4 * kTeamStep;

DPIF_HOST_DEVICE int within(int at, int period) {
  return at < period ? at : at % period;
}

// Bytes [start, start + kTeamStep) of all pieces: all are loaded before any is stored.
DPIF_HOST_DEVICE void copy_step(std::uint8_t* to, const std::uint8_t* from, const Piece& mine,
                               int start) {
  const int team = lanes::index() / kTeam, place = start + lanes::index() % kTeam;
  std::uint8_t held[2 * kTeam] = {};
  DPIF_UNROLL
  for (int k = 0; k < kTeam; ++k) {
    const Piece piece = from_lane(mine, k * kTeams + team);
    for (int half = 0; half < 2; ++half) {
      const int at = place + half * kTeam;
      if (at < piece.size) held[2 * k + half] = from[piece.from + within(at, piece.period)];
    }
  }
  DPIF_UNROLL
  for (int k = 0; k < kTeam; ++k) {
    const int size = from_lane(mine.size, k * kTeams + team);
    std::uint8_t* start_of = to + from_lane(mine.to, k * kTeams + team);
    for (int half = 0; half < 2; ++half) {
      const int at = place + half * kTeam;
      if (at < size) start_of[at] = held[2 * k + half];
    }
  }
}

// The same piece for all lanes.
DPIF_HOST_DEVICE void copy_one(std::uint8_t* to, const std::uint8_t* from, const Piece& piece) {
  if (lanes::kCount == 1 || piece.size > kShort) return copy_long(to, from, piece);
  constexpr int kFlying = kShort / lanes::kCount;
  std::uint8_t held[kFlying] = {};
  DPIF_UNROLL
  for (int k = 0; k < kFlying; ++k) {
    const int at = lanes::index() + k * lanes::kCount;
    if (at < piece.size) held[k] = from[piece.from + within(at, piece.period)];
  }
  DPIF_UNROLL
  for (int k = 0; k < kFlying; ++k) {
    const int at = lanes::index() + k * lanes::kCount;
    if (at < piece.size) to[piece.to + at] = held[k];
  }
}

// Copies every lane's piece. None reads what another one writes.
DPIF_HOST_DEVICE void copy_pieces(std::uint8_t* to, const std::uint8_t* from, const Piece& mine) {
  constexpr int kFew = 3;
  bool apart = mine.size > kShort;
  const LaneCount small = count_lanes(mine.size > 0 && !apart);
  if (small.all > kFew) {
    Piece piece = mine;
    if (apart) piece.size = 0;
    for (int start = 0; first_lane(piece.size > start) >= 0; start += kTeamStep)
      copy_step(to, from, piece, start);
  } else {
    apart = mine.size > 0;
  }
  for (int lane = first_lane(apart); lane >= 0; lane = first_lane(apart)) {
    copy_one(to, from, from_lane(mine, lane));
    apart &= lanes::index() != lane;
  }
}

}  // namespace dpiframe::zstd
