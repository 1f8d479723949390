// Reading and writing a Matrix on the device. The type is the same for all threads of a launch, so
// the branch on it costs next to nothing beside the access.
#pragma once

#include "cuda/conversions.cuh"
#include "kernels/elementwise/matrix.h"

namespace dpiframe {

__device__ inline float load(const Matrix& m, std::int64_t row, std::int64_t column) {
  const std::int64_t i = row * m.row_stride + column * m.column_stride;
  if (m.type == DataType::kHalf) return to_float(static_cast<const __half*>(m.data)[i]);
  if (m.type == DataType::kBfloat16) return to_float(static_cast<const __nv_bfloat16*>(m.data)[i]);
  return static_cast<const float*>(m.data)[i];
}

__device__ inline void store(const Matrix& m, std::int64_t row, std::int64_t column, float value) {
  const std::int64_t i = row * m.row_stride + column * m.column_stride;
  if (m.type == DataType::kHalf)
    static_cast<__half*>(m.data)[i] = from_float<__half>(value);
  else if (m.type == DataType::kBfloat16)
    static_cast<__nv_bfloat16*>(m.data)[i] = from_float<__nv_bfloat16>(value);
  else
    static_cast<float*>(m.data)[i] = value;
}

}  // namespace dpiframe
