// Generic operations over per-sample tensors: what dpiframe_core/program/tensor_ops.py describes,
// for models that no other step computes.
//
// An operand reads columns of a buffer [rows, width] as a tensor [rows, *shape] with any strides;
// the result lies row-major in the columns of `out`. Operands and results may be float32 or 16 bits
// wide; everything is computed in float32, sums over axes in float64.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/elementwise/matrix.h"
#include "kernels/tensor/operations.h"

namespace dpiframe {

// `source` has row_stride 0 where all samples read the same numbers.
struct TensorInput {
  Matrix source;
  Operand operand;
};

struct TensorOperands {
  std::vector<TensorInput> inputs;
  Matrix out;
};

// Enqueues an operation for so many rows; it neither synchronises nor allocates. Copies share the
// device memory of its tables.
using TensorLaunch = std::function<void(std::int64_t rows, cudaStream_t stream)>;

// ValueError: the operands do not fit the operation, or read outside their sources. Takes device
// memory for tables and synchronises; the launch that it returns does neither.
TensorLaunch tensor_op(const TensorOp& op, const TensorOperands& operands);

}  // namespace dpiframe
