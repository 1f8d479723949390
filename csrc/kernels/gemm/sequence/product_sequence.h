// Products that follow one another, or stand side by side, as one kernel: no launch between them,
// and none waits for all rows of the one before (product_sequence.cuh). In 16 bits and tf32, on
// Hopper.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/precision.h"
#include "cuda/device_buffer.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/sequence/sequence_config.h"

namespace dpiframe {

// A product, and those before it in its sequence whose results it reads.
struct SequenceProduct {
  LinearParams params;  // rows: as many as the largest batch has
  std::vector<int> after;
};

class ProductSequence {
 public:
  // `rows`: the batches that it is for. Runs of one sequence follow one another.
  ProductSequence(Precision precision, std::vector<SequenceProduct> products,
                  std::vector<std::int64_t> rows);

  // Whether batches of so many rows run as the sequence, and not product by product.
  bool takes(std::int64_t rows) const;
  // Partial sums a row of the dot of a product.
  int num_partials(int product, std::int64_t rows) const;
  // Enqueues the products for so many rows, more than none; never synchronises, may be captured in
  // a graph.
  void run(std::int64_t rows, cudaStream_t stream) const;

  std::size_t bytes() const { return counters_->bytes(); }

 private:
  LinearConfig config(std::int64_t rows) const;

  Precision precision_;
  std::vector<SequenceProduct> products_;
  std::vector<std::int64_t> rows_;
  std::vector<ProductShape> shapes_;
  std::shared_ptr<DeviceBuffer> counters_;
};

}  // namespace dpiframe
