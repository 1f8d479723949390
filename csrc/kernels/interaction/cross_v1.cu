// out = x0 * (xl . weight) + bias + xl: a layer of DCN's cross network that no pass collapsed.
// A warp owns a row: it sums the dot over its lanes, then writes the row. xl is read twice, the
// second time from cache.
#include "cuda/cuda_check.h"
#include "kernels/elementwise/matrix.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

constexpr int kRows = 8;  // a block

__global__ void __launch_bounds__(32 * kRows)
    cross_v1_kernel(std::int64_t rows, const __grid_constant__ Matrix x0,
                    const __grid_constant__ Matrix xl, const float* weight, const float* bias,
                    const __grid_constant__ Matrix out) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
  if (row >= rows) return;
  float dot = 0.0f;
  for (int c = threadIdx.x; c < xl.width; c += 32) dot = fmaf(load(xl, row, c), weight[c], dot);
  for (int width = 16; width > 0; width /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, width);
  for (int c = threadIdx.x; c < out.width; c += 32)
    store(out, row, c, fmaf(load(x0, row, c), dot, bias[c] + load(xl, row, c)));
}

}  // namespace

void cross_v1(std::int64_t rows, const Matrix& x0, const Matrix& xl, const float* weight,
              const float* bias, const Matrix& out, cudaStream_t stream) {
  if (rows == 0) return;
  const auto num_blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
  cross_v1_kernel<<<num_blocks, dim3(32, kRows), 0, stream>>>(rows, x0, xl, weight, bias, out);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
