#include "features/xxh64.h"

#include <bit>
#include <cstring>

namespace dpiframe {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read as little-endian");

struct Memory {
  const std::uint8_t* begin;

  template <class Word>
  std::uint64_t load(std::int64_t i) const {
    Word word;
    std::memcpy(&word, begin + i, sizeof(word));
    return word;
  }
  std::uint64_t word8(std::int64_t i) const { return load<std::uint64_t>(i); }
  std::uint64_t word4(std::int64_t i) const { return load<std::uint32_t>(i); }
  std::uint64_t byte(std::int64_t i) const { return begin[i]; }
};

}  // namespace

std::uint64_t xxh64(const void* data, std::int64_t num_bytes, std::uint64_t seed) {
  return xxh64_of(Memory{static_cast<const std::uint8_t*>(data)}, num_bytes, seed);
}

}  // namespace dpiframe
