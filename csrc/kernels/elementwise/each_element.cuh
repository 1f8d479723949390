// One launch for steps that compute each element of their output by itself.
//
// A block of 256 threads owns a few rows; threads along a row take neighbouring columns, as many
// as the width has up to a warp, so that accesses are coalesced for wide and for narrow outputs.
// Wide rows are divided among blocks: a thread has kColumns elements, whose loads overlap.
#pragma once

#include <algorithm>
#include <limits>

#include "cuda/cuda_check.h"
#include "kernels/elementwise/matrix.cuh"

namespace dpiframe {

constexpr int kColumns = 4;

template <class Value>
__global__ void __launch_bounds__(256)
    each_element_kernel(std::int64_t rows, const __grid_constant__ Matrix out,
                        const __grid_constant__ Value value) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int first = static_cast<int>(blockIdx.y * blockDim.x * kColumns + threadIdx.x);
  const auto column = [&](int i) { return first + i * static_cast<int>(blockDim.x); };
  float values[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    if (column(i) < out.width) values[i] = value(row, column(i));
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    if (column(i) < out.width) store(out, row, column(i), values[i]);
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
  const unsigned parts = (out.width + kColumns * columns - 1) / (kColumns * columns);
  const dim3 grid(static_cast<unsigned>(num_blocks), parts);
  each_element_kernel<<<grid, block, 0, stream>>>(rows, out, value);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
