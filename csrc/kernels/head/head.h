// The end of every model: logit = bias + sum of terms; score = 1 / (1 + exp(-logit)). float32.
//
// A term is sum_c a(r, c) * b(r, c) * w[c] with b and w optional: a dot with weights, a product of
// two scalars, one scalar, the partial sums of a product's epilogue (stored part by part).
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/batch_memory.h"
#include "kernels/elementwise/matrix.h"

namespace dpiframe {

struct HeadTerm {
  Matrix a;
  Matrix b;        // data null: 1
  const float* w;  // null: 1
};

struct HeadStep {
  std::vector<HeadTerm> terms;
  float bias;
  float* out;                       // [rows] logits, the program's own memory
  int num_report;                   // counters to copy to the caller
  const BatchMemory* batch_memory;  // where a lookup leaves its own; null: nowhere
};

// Enqueues the head over `rows` rows; the last kernel it launches is the one that takes the batch,
// from `inputs` where step.batch_memory is null.
void head(std::int64_t rows, const HeadStep& step, const BatchMemory& inputs, cudaStream_t stream);

}  // namespace dpiframe
