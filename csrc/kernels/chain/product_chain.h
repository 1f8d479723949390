// Launches chains of products (product_chain.cuh), whose kernels are compiled at load. 16 bits,
// Hopper only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/precision.h"
#include "cuda/loaded_kernel.h"

namespace dpiframe {

// [max_rows, columns] of the activation type.
struct ChainMatrix {
  const void* data;
  std::int64_t stride;
  int columns;
};

struct ChainLayer {
  const void* weight;  // made by prepare_linear_weight
  int n;
  int k;
  const float* vectors;  // [numbers a column, n rounded up to whole groups of 16]
  void* out;             // or null
  std::int64_t out_stride;
  float* partial;  // of the head's dot: [head_partials, ld_partial], or null
  float* sums;     // likewise of rows, and of their squares, or null
  float* squares;
  std::int64_t ld_partial;
};

class ProductChain {
 public:
  // ctas: of a cluster, which share a tile. rows: the batches that it is for.
  ProductChain(Precision precision, std::vector<ChainMatrix> inputs, std::vector<ChainLayer> layers,
               const std::string& cubin, int shared_bytes, int ctas,
               std::vector<std::int64_t> rows);

  // Whether batches of so many rows run as the chain, and not step by step.
  bool takes(std::int64_t rows) const;
  // Enqueues the chain for so many rows, more than none; never synchronises, may be captured in a
  // graph.
  void run(std::int64_t rows, cudaStream_t stream) const;

 private:
  Precision precision_;
  std::vector<ChainMatrix> inputs_;
  std::vector<ChainLayer> layers_;
  LoadedKernel kernel_;
  int ctas_;
  std::vector<std::int64_t> rows_;
};

}  // namespace dpiframe
