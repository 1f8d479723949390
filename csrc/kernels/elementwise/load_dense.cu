// Dense features [N, B] are transposed to [B, N]; load_dense.h.
//
// A block owns 32 samples and moves the features in tiles of 32 x 32 through shared memory, so that
// both the reads along B and the writes along N are coalesced.
#include "cuda/cuda_check.h"
#include "kernels/elementwise/load_dense.h"
#include "kernels/elementwise/matrix.cuh"

namespace dpiframe {
namespace {

constexpr int kSide = 32;
constexpr int kLines = 8;

__global__ void __launch_bounds__(kSide* kLines)
    load_dense_kernel(const __grid_constant__ BatchMemory inputs,
                      const __grid_constant__ Matrix out) {
  __shared__ float tile[kSide][kSide + 1];
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * kSide;
  for (int n0 = 0; n0 < out.width; n0 += kSide) {
    for (int n = threadIdx.y; n < kSide; n += kLines)
      if (n0 + n < out.width && row0 + threadIdx.x < inputs.batch)
        tile[n][threadIdx.x] = inputs.dense[(n0 + n) * inputs.dense_stride + row0 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < kSide; r += kLines)
      if (n0 + static_cast<int>(threadIdx.x) < out.width && row0 + r < inputs.batch)
        store(out, row0 + r, n0 + threadIdx.x, tile[threadIdx.x][r]);
    __syncthreads();
  }
}

}  // namespace

void load_dense(std::int64_t rows, const Matrix& out, const BatchMemory& inputs,
                cudaStream_t stream) {
  if (rows == 0) return;
  const auto num_blocks = static_cast<unsigned>((rows + kSide - 1) / kSide);
  load_dense_kernel<<<num_blocks, dim3(kSide, kLines), 0, stream>>>(inputs, out);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
