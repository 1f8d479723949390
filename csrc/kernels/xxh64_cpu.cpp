// XXH64: 32-byte stripes in four lanes, then 8-, 4- and 1-byte steps, then an avalanche. Category
// values are short (8 hex digits in Criteo and Avazu), so the steps after the stripes matter.
#include <bit>
#include <cstring>

#include "common/check.h"
#include "kernels/xxh64.h"

namespace dpiframe {
namespace {

using std::rotl;
using std::uint64_t;
using std::uint8_t;

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

static_assert(std::endian::native == std::endian::little, "values are read as little-endian");

template <class Word>
uint64_t load(const uint8_t* place) {
  Word word;
  std::memcpy(&word, place, sizeof(word));
  return word;
}

uint64_t round(uint64_t lane, uint64_t word) {
  return rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t step8(uint64_t hash, uint64_t word) {
  return rotl(hash ^ round(0, word), 27) * kPrime1 + kPrime4;
}

uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

// Consumes whole 32-byte stripes and moves `place` past them.
uint64_t stripes(const uint8_t*& place, const uint8_t* end, uint64_t seed) {
  uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  for (; end - place >= 32; place += 32)
    for (int k = 0; k < 4; ++k) lanes[k] = round(lanes[k], load<uint64_t>(place + 8 * k));
  uint64_t hash = rotl(lanes[0], 1) + rotl(lanes[1], 7) + rotl(lanes[2], 12) + rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

template <class Offset>
void hash_strings(const Offset* offsets, const uint8_t* data, std::int64_t num_bytes,
                  std::int64_t size, uint64_t seed, uint64_t* out) {
  bool ordered = offsets[0] >= 0 && offsets[size] <= num_bytes;
  for (std::int64_t i = 0; i < size; ++i) ordered &= offsets[i] <= offsets[i + 1];
  DPIF_CHECK(ordered, "offsets must rise from >= 0 to <= ", num_bytes, " (the bytes of data), got ",
             offsets[0], " to ", offsets[size], " for ", size, " values");
  for (std::int64_t i = 0; i < size; ++i)
    out[i] = xxh64(data + offsets[i], offsets[i + 1] - offsets[i], seed);
}

}  // namespace

uint64_t xxh64(const void* data, std::int64_t num_bytes, uint64_t seed) {
  const uint8_t* place = static_cast<const uint8_t*>(data);
  const uint8_t* end = place + num_bytes;
  uint64_t hash = num_bytes >= 32 ? stripes(place, end, seed) : seed + kPrime5;
  hash += static_cast<uint64_t>(num_bytes);
  for (; end - place >= 8; place += 8) hash = step8(hash, load<uint64_t>(place));
  if (end - place >= 4) {
    hash = rotl(hash ^ load<std::uint32_t>(place) * kPrime1, 23) * kPrime2 + kPrime3;
    place += 4;
  }
  for (; place < end; ++place) hash = rotl(hash ^ *place * kPrime5, 11) * kPrime1;
  return avalanche(hash);
}

void xxh64_strings(const std::int32_t* offsets, const uint8_t* data, std::int64_t num_bytes,
                   std::int64_t size, uint64_t seed, uint64_t* out) {
  hash_strings(offsets, data, num_bytes, size, seed, out);
}

void xxh64_strings(const std::int64_t* offsets, const uint8_t* data, std::int64_t num_bytes,
                   std::int64_t size, uint64_t seed, uint64_t* out) {
  hash_strings(offsets, data, num_bytes, size, seed, out);
}

void xxh64_int64(const std::int64_t* values, std::int64_t size, uint64_t seed, uint64_t* out) {
  for (std::int64_t i = 0; i < size; ++i)
    out[i] = avalanche(step8(seed + kPrime5 + 8, static_cast<uint64_t>(values[i])));
}

}  // namespace dpiframe
