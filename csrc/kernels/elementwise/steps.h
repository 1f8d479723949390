// The small steps of a program, for what no pass fused away: their formulas are those of
// dpiframe_core/program/steps.py, and `steps.cu` holds a functor and a row of a table for each.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/elementwise/matrix.h"

namespace dpiframe {

// What a step reads and writes, each list in the order of the step's fields: matrices [rows, width]
// of any type and stride, float32 weights in device memory, and sizes.
struct ElementwiseOperands {
  std::vector<Matrix> inputs;
  std::vector<const float*> weights;
  std::vector<int> sizes;
  Matrix out;
};

// Enqueues the step for so many rows; it neither synchronises nor allocates.
using ElementwiseLaunch = std::function<void(std::int64_t rows, cudaStream_t stream)>;

// The launch of the step of that name.
ElementwiseLaunch elementwise_step(const std::string& name, const ElementwiseOperands& operands);

}  // namespace dpiframe
