// Words of bytes in memory, for decoders that run on a GPU and on the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/lanes.h"

namespace dpiframe::words {

DPIF_HOST_DEVICE int smaller(int a, int b) {
  return a < b ? a : b;
}

DPIF_HOST_DEVICE int offset_in_word(const std::uint8_t* at, int word_bytes) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % word_bytes);
}

// From an address that is a multiple of its size.
template <class Word>
DPIF_HOST_DEVICE Word load_word(const std::uint8_t* at) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const Word*>(at);
#else
  Word word;
  std::memcpy(&word, at, sizeof(word));
  return word;
#endif
}

DPIF_HOST_DEVICE void store_word(std::uint8_t* at, std::uint64_t word) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<std::uint64_t*>(at) = word;
#else
  std::memcpy(at, &word, sizeof(word));
#endif
}

}  // namespace dpiframe::words
