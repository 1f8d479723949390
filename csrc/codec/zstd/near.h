// Sequences that make few bytes together are put together in near memory: what one takes from
// another is found by following where it comes from, not by waiting for the other to be written,
// which would take longer than all else.
#pragma once

#include "codec/zstd/copy.h"
#include "codec/zstd/work.h"

namespace dpiframe::zstd {

// What the sequences of all lanes do, one behind the other.
struct NearBatch {
  const std::uint8_t* literals;  // those that they take
  std::uint8_t* out;             // where their bytes begin; matches reach to before
  LaneSum num_literals;
  LaneSum num_matched;
  int at;      // where this lane's literals go in `out`,
  int to;      // and its match,
  int offset;  // which is copied from so far before
};

// The last lane of which `before`, ascending from 0 on, is not larger than i.
DPIF_HOST_DEVICE int owner(int before, int i) {
  int lane = 0;
  DPIF_UNROLL
  for (int step = lanes::kCount / 2; step > 0; step /= 2)
    if (from_lane(before, lane + step) <= i) lane += step;
  return lane;
}

constexpr int kNearFlying = 4;

DPIF_HOST_DEVICE void put_literals(const NearBatch& batch, Work& work) {
  const int total = batch.num_literals.all;
  for (int start = lanes::index(); start - lanes::index() < total;
       start += kNearFlying * lanes::kCount) {
    std::uint8_t held[kNearFlying] = {};
    DPIF_UNROLL
    for (int k = 0; k < kNearFlying; ++k)
      if (start + k * lanes::kCount < total) held[k] = batch.literals[start + k * lanes::kCount];
    DPIF_UNROLL
    for (int k = 0; k < kNearFlying; ++k) {
      const int i = start + k * lanes::kCount;
      const int lane = owner(batch.num_literals.before, i);
      const int to = i + from_lane(batch.at - batch.num_literals.before, lane);
      if (i >= total) continue;
      work.near_bytes[to] = held[k];
      work.near_sources[to] = static_cast<std::uint16_t>(to);
    }
  }
}

// Bytes from before the batch are taken at once; of others it is noted where they come from.
DPIF_HOST_DEVICE void put_matches(const NearBatch& batch, Work& work) {
  const int total = batch.num_matched.all;
  for (int start = lanes::index(); start - lanes::index() < total;
       start += kNearFlying * lanes::kCount) {
    int to[kNearFlying], from[kNearFlying];
    std::uint8_t held[kNearFlying] = {};
    DPIF_UNROLL
    for (int k = 0; k < kNearFlying; ++k) {
      const int i = start + k * lanes::kCount;
      const int lane = owner(batch.num_matched.before, i);
      const int at = i - from_lane(batch.num_matched.before, lane);
      const int match = from_lane(batch.to, lane), offset = from_lane(batch.offset, lane);
      to[k] = match + at;
      from[k] = i < total ? match - offset + within(at, offset) : 0;
      if (from[k] < 0) held[k] = batch.out[from[k]];
    }
    DPIF_UNROLL
    for (int k = 0; k < kNearFlying; ++k) {
      if (start + k * lanes::kCount >= total) continue;
      work.near_sources[to[k]] = static_cast<std::uint16_t>(from[k] < 0 ? to[k] : from[k]);
      if (from[k] < 0) work.near_bytes[to[k]] = held[k];
    }
  }
}

// Up to kNear bytes in all. A source is always before what is taken from it, so following them
// comes to an end.
DPIF_HOST_DEVICE void execute_near(const NearBatch& batch, Work& work) {
  put_literals(batch, work);
  put_matches(batch, work);
  lanes::sync();
  const int total = batch.num_literals.all + batch.num_matched.all;
  for (int i = lanes::index(); i < total; i += lanes::kCount) {
    int source = work.near_sources[i];
    for (int next = work.near_sources[source]; next != source; next = work.near_sources[source])
      source = next;
    batch.out[i] = work.near_bytes[source];
  }
  lanes::sync();
}

}  // namespace dpiframe::zstd
