// A few sequences of literals and matches that are put together in shared memory: each byte is
// known already, or has a source among the bytes before it, which is followed to its own source. So
// no match waits until another one is written.
#pragma once

#include <cstdint>

#include "common/lanes.h"

namespace dpiframe::words {

constexpr int kBatchBytes = 1024;

// Shared memory of a warp.
struct BatchBytes {
  std::uint16_t sources[kBatchBytes];  // of a byte that is known: itself
  std::uint8_t bytes[kBatchBytes];
};

// Writes the first `total` bytes. Each step doubles how far a source has been followed, for a few
// bytes a lane at a time; those before them have been followed to their ends.
DPIF_HOST_DEVICE void write_batch(BatchBytes& batch, int total, std::uint8_t* out) {
  constexpr int kInFlight = 4;
  for (int start = lanes::index(); start - lanes::index() < total;
       start += kInFlight * lanes::kCount) {
    int source[kInFlight];
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int i = start + k * lanes::kCount;
      source[k] = i < total ? batch.sources[i] : 0;
    }
    for (;;) {
      bool followed = true;
      int next[kInFlight];
      DPIF_UNROLL
      for (int k = 0; k < kInFlight; ++k) {
        next[k] = batch.sources[source[k]];
        followed &= start + k * lanes::kCount >= total || next[k] == source[k];
      }
      if (lanes::all(followed)) break;
      lanes::sync();  // all have read what is written now
      DPIF_UNROLL
      for (int k = 0; k < kInFlight; ++k) {
        const int i = start + k * lanes::kCount;
        source[k] = next[k];
        if (i < total) batch.sources[i] = static_cast<std::uint16_t>(next[k]);
      }
      lanes::sync();
    }
    DPIF_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int i = start + k * lanes::kCount;
      if (i < total) out[i] = batch.bytes[source[k]];
    }
  }
  lanes::sync();
}

}  // namespace dpiframe::words
