// One launch for steps that compute each element of their output by itself.
//
// A block of 256 threads owns a few rows; threads along a row take neighbouring columns, as many
// as the width has up to a warp, so that accesses are coalesced for wide and for narrow outputs.
#pragma once

#include <algorithm>
#include <limits>

#include "cuda/cuda_check.h"
#include "kernels/elementwise/matrix.cuh"

namespace dpiframe {

template <class Value>
__global__ void __launch_bounds__(256)
    each_element_kernel(std::int64_t rows, const __grid_constant__ Matrix out,
                        const __grid_constant__ Value value) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  for (int column = threadIdx.x; column < out.width; column += blockDim.x)
    store(out, row, column, value(row, column));
}

// out(r, c) = value(r, c), in float32.
template <class Value>
void each_element(std::int64_t rows, const Matrix& out, const Value& value, cudaStream_t stream) {
  if (rows == 0 || out.width == 0) return;
  unsigned columns = 1;
  while (columns < 32 && static_cast<int>(columns) < out.width) columns *= 2;
  const dim3 block(columns, 256 / columns);
  const std::int64_t num_blocks = (rows + block.y - 1) / block.y;
  DPIF_CHECK(num_blocks <= std::numeric_limits<int>::max(), "too many rows: ", rows);
  each_element_kernel<<<static_cast<unsigned>(num_blocks), block, 0, stream>>>(rows, out, value);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
