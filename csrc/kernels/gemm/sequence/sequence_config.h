// The tiles of a sequence of products, and what a model of its time says: pure functions of the
// shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "common/precision.h"
#include "kernels/gemm/tile_config.h"

namespace dpiframe {

// Of a product of a sequence; `after`: the products before it whose results it reads.
struct ProductShape {
  int n;
  int k;
  std::vector<int> after;
};

constexpr int kLeastSequenceTile = 64;  // columns

struct SequenceChoice {
  LinearConfig config;  // of all products
  double microseconds;
};

// The tiles of the least time for so many rows.
SequenceChoice sequence_choice(Precision precision, std::int64_t rows,
                               const std::vector<ProductShape>& products);

}  // namespace dpiframe
