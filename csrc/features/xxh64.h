// XXH64, which turns category values into ids.
//
// The algorithm is Yann Collet's, as the xxHash specification gives it: the same bytes and seed
// give the same hash in every implementation.
#pragma once

#include <bit>
#include <cstdint>

namespace dpiframe {

std::uint64_t xxh64(const void* data, std::int64_t num_bytes, std::uint64_t seed);

inline constexpr std::uint64_t kXxhPrime1 = 0x9E3779B185EBCA87;
inline constexpr std::uint64_t kXxhPrime2 = 0xC2B2AE3D27D4EB4F;
inline constexpr std::uint64_t kXxhPrime3 = 0x165667B19E3779F9;
inline constexpr std::uint64_t kXxhPrime4 = 0x85EBCA77C2B2AE63;
inline constexpr std::uint64_t kXxhPrime5 = 0x27D4EB2F165667C5;

inline std::uint64_t xxh64_round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kXxhPrime2, 31) * kXxhPrime1;
}

inline std::uint64_t xxh64_step8(std::uint64_t hash, std::uint64_t word) {
  return std::rotl(hash ^ xxh64_round(0, word), 27) * kXxhPrime1 + kXxhPrime4;
}

inline std::uint64_t xxh64_avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kXxhPrime2;
  hash = (hash ^ (hash >> 29)) * kXxhPrime3;
  return hash ^ (hash >> 32);
}

// XXH64 of the 8 little-endian bytes of a word: the most common values have eight bytes.
inline std::uint64_t xxh64_word(std::uint64_t word, std::uint64_t seed) {
  return xxh64_avalanche(xxh64_step8(seed + kXxhPrime5 + 8, word));
}

}  // namespace dpiframe
