// XXH64, which turns category values into ids; on a GPU as well.
//
// The algorithm is Yann Collet's, as the xxHash specification gives it: the same bytes and seed
// give the same hash in every implementation.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace dpiframe {

std::uint64_t xxh64(const void* data, std::int64_t num_bytes, std::uint64_t seed);

inline constexpr std::uint64_t kXxhPrime1 = 0x9E3779B185EBCA87;
inline constexpr std::uint64_t kXxhPrime2 = 0xC2B2AE3D27D4EB4F;
inline constexpr std::uint64_t kXxhPrime3 = 0x165667B19E3779F9;
inline constexpr std::uint64_t kXxhPrime4 = 0x85EBCA77C2B2AE63;
inline constexpr std::uint64_t kXxhPrime5 = 0x27D4EB2F165667C5;

DPIF_HOST_DEVICE std::uint64_t xxh64_rotated(std::uint64_t word, int bits) {
  return word << bits | word >> (64 - bits);
}

DPIF_HOST_DEVICE std::uint64_t xxh64_round(std::uint64_t lane, std::uint64_t word) {
  return xxh64_rotated(lane + word * kXxhPrime2, 31) * kXxhPrime1;
}

DPIF_HOST_DEVICE std::uint64_t xxh64_step8(std::uint64_t hash, std::uint64_t word) {
  return xxh64_rotated(hash ^ xxh64_round(0, word), 27) * kXxhPrime1 + kXxhPrime4;
}

DPIF_HOST_DEVICE std::uint64_t xxh64_avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kXxhPrime2;
  hash = (hash ^ (hash >> 29)) * kXxhPrime3;
  return hash ^ (hash >> 32);
}

// XXH64 of the 8 little-endian bytes of a word: the most common values have eight bytes.
DPIF_HOST_DEVICE std::uint64_t xxh64_word(std::uint64_t word, std::uint64_t seed) {
  return xxh64_avalanche(xxh64_step8(seed + kXxhPrime5 + 8, word));
}

// XXH64 of `size` bytes, of which word8(i), word4(i) and byte(i) give those from the i-th on:
// 32-byte stripes in four lanes, then 8-, 4- and 1-byte steps, then an avalanche.
template <class Data>
DPIF_HOST_DEVICE std::uint64_t xxh64_of(const Data& data, std::int64_t size, std::uint64_t seed) {
  std::int64_t i = 0;
  std::uint64_t hash = seed + kXxhPrime5;
  if (size >= 32) {
    std::uint64_t a = seed + kXxhPrime1 + kXxhPrime2, b = seed + kXxhPrime2, c = seed,
                  d = seed - kXxhPrime1;
    for (; size - i >= 32; i += 32) {
      a = xxh64_round(a, data.word8(i));
      b = xxh64_round(b, data.word8(i + 8));
      c = xxh64_round(c, data.word8(i + 16));
      d = xxh64_round(d, data.word8(i + 24));
    }
    hash = xxh64_rotated(a, 1) + xxh64_rotated(b, 7) + xxh64_rotated(c, 12) + xxh64_rotated(d, 18);
    hash = (hash ^ xxh64_round(0, a)) * kXxhPrime1 + kXxhPrime4;
    hash = (hash ^ xxh64_round(0, b)) * kXxhPrime1 + kXxhPrime4;
    hash = (hash ^ xxh64_round(0, c)) * kXxhPrime1 + kXxhPrime4;
    hash = (hash ^ xxh64_round(0, d)) * kXxhPrime1 + kXxhPrime4;
  }
  hash += static_cast<std::uint64_t>(size);
  for (; size - i >= 8; i += 8) hash = xxh64_step8(hash, data.word8(i));
  if (size - i >= 4) {
    hash = xxh64_rotated(hash ^ data.word4(i) * kXxhPrime1, 23) * kXxhPrime2 + kXxhPrime3;
    i += 4;
  }
  for (; i < size; ++i) hash = xxh64_rotated(hash ^ data.byte(i) * kXxhPrime5, 11) * kXxhPrime1;
  return xxh64_avalanche(hash);
}

}  // namespace dpiframe
