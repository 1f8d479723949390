// XXH64: 32-byte stripes in four lanes, then 8-, 4- and 1-byte steps, then an avalanche. Category
// values are short (8 hex digits in Criteo and Avazu), so the steps after the stripes matter.
#include "features/xxh64.h"

#include <bit>
#include <cstring>

namespace dpiframe {
namespace {

using std::rotl;
using std::uint64_t;
using std::uint8_t;

static_assert(std::endian::native == std::endian::little, "values are read as little-endian");

template <class Word>
uint64_t load(const uint8_t* cursor) {
  Word word;
  std::memcpy(&word, cursor, sizeof(word));
  return word;
}

// Consumes whole 32-byte stripes and moves `cursor` past them.
uint64_t stripes(const uint8_t*& cursor, const uint8_t* end, uint64_t seed) {
  uint64_t lanes[4] = {seed + kXxhPrime1 + kXxhPrime2, seed + kXxhPrime2, seed, seed - kXxhPrime1};
  for (; end - cursor >= 32; cursor += 32)
    for (int k = 0; k < 4; ++k) lanes[k] = xxh64_round(lanes[k], load<uint64_t>(cursor + 8 * k));
  uint64_t hash = rotl(lanes[0], 1) + rotl(lanes[1], 7) + rotl(lanes[2], 12) + rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = (hash ^ xxh64_round(0, lane)) * kXxhPrime1 + kXxhPrime4;
  return hash;
}

}  // namespace

uint64_t xxh64(const void* data, std::int64_t num_bytes, uint64_t seed) {
  const uint8_t* cursor = static_cast<const uint8_t*>(data);
  const uint8_t* end = cursor + num_bytes;
  uint64_t hash = num_bytes >= 32 ? stripes(cursor, end, seed) : seed + kXxhPrime5;
  hash += static_cast<uint64_t>(num_bytes);
  for (; end - cursor >= 8; cursor += 8) hash = xxh64_step8(hash, load<uint64_t>(cursor));
  if (end - cursor >= 4) {
    hash = rotl(hash ^ load<std::uint32_t>(cursor) * kXxhPrime1, 23) * kXxhPrime2 + kXxhPrime3;
    cursor += 4;
  }
  for (; cursor < end; ++cursor) hash = rotl(hash ^ *cursor * kXxhPrime5, 11) * kXxhPrime1;
  return xxh64_avalanche(hash);
}

}  // namespace dpiframe
