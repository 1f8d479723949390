// What decoding a zstd frame keeps in a warp's shared memory.
#pragma once

#include <cstdint>

#include "codec/batch_bytes.cuh"

namespace dpiframe::zstd {

using namespace words;

constexpr int kMaxCodeBits = 11;  // bits of a Huffman code of literals
constexpr int kMaxWeight = kMaxCodeBits;
constexpr int kWeightsLog = 6;

// Tables outlive a block: the next one may repeat them.
struct Workspace {
  std::uint32_t tables[512 + 256 + 512];     // FSE tables of sequences: see sequences.cuh
  std::uint16_t huffman[1 << kMaxCodeBits];  // indexed by the next bits: symbol | bits << 8
  std::uint32_t weights_table[1 << kWeightsLog];
  union {
    std::int16_t counts[256];   // of a table's symbols, while it is built
    std::uint16_t starts[256];  // of a symbol's entries in `huffman`, while it is filled
  };
  BatchBytes batch;
  std::uint8_t weights[256];            // of the Huffman code
  std::uint16_t ranks[kMaxWeight + 1];  // how many symbols have a weight
  std::uint8_t logs[4];                 // of the size of each of `tables`
};

}  // namespace dpiframe::zstd
