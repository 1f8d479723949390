// What the launcher of a chain of products tells its kernel.
#pragma once

#include <cuda.h>

namespace dpiframe {

constexpr int kChainRows = 64;  // samples of a tile
constexpr int kMaxChainInputs = 4;
constexpr int kMaxChainLayers = 12;

// Where the results of a layer go in device memory, if anywhere.
struct ChainOut {
  void* data;  // of the activation type; null: nowhere
  long long stride;
  float* partial;  // the parts of a head's dot, [num_partials, rows]; null: none
  float* sums;     // likewise of rows, and of their squares, which other steps read; or null
  float* squares;
  long long ld_partial;  // elements from one part to the next
  int num_partials;      // the first gets the dot, the others 0
};

// CUtensorMap is aligned as the version of CUDA has it, which may be another one where the kernel
// is compiled.
struct ChainParams {
  alignas(128) CUtensorMap inputs[kMaxChainInputs];   // boxes of kChainRows rows of 128 bytes
  alignas(128) CUtensorMap weights[kMaxChainLayers];  // boxes of a warpgroup's columns
  const float* vectors[kMaxChainLayers];              // of each column (product_chain.cuh)
  ChainOut outs[kMaxChainLayers];
  long long rows;
  int num_tiles;
};

}  // namespace dpiframe
