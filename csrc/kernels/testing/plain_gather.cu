// A gather with one thread for each 16-byte vector of a row: what the memory allows;
// plain_gather.h.
//
// A CTA owns as many rows as 256 threads hold; neighbouring threads own neighbouring vectors, so
// out is written coalesced. Bytes a row: 8 of its number, row_bytes read, row_bytes written.
#include <algorithm>
#include <limits>

#include "cuda/cuda_check.h"
#include "kernels/testing/plain_gather.h"

namespace dpiframe {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;

__global__ void __launch_bounds__(kThreads)
    plain_gather_kernel(const __grid_constant__ PlainGatherParams params, int num_vectors) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= params.num_rows) return;
  const uint4* row = static_cast<const uint4*>(params.table) + params.rows[i] * num_vectors;
  uint4* out = static_cast<uint4*>(params.out) + i * num_vectors;
  for (int v = threadIdx.x; v < num_vectors; v += blockDim.x) out[v] = row[v];
}

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kVectorBytes == 0;
}

}  // namespace

void plain_gather(const PlainGatherParams& params, cudaStream_t stream) {
  DPIF_CHECK(params.row_bytes > 0 && params.row_bytes % kVectorBytes == 0,
             "row_bytes must be a multiple of ", kVectorBytes, ", got ", params.row_bytes);
  DPIF_CHECK(aligned(params.table) && aligned(params.out), "table and out must start at ",
             kVectorBytes, " bytes");
  DPIF_CHECK(params.num_rows >= 0, "num_rows must not be negative, got ", params.num_rows);
  if (params.num_rows == 0) return;
  const auto num_vectors = static_cast<int>(params.row_bytes / kVectorBytes);
  const int wide = std::min(num_vectors, kThreads);
  const dim3 threads(wide, kThreads / wide);
  const std::int64_t num_blocks = (params.num_rows + threads.y - 1) / threads.y;
  DPIF_CHECK(num_blocks <= std::numeric_limits<int>::max(), "too many rows: ", params.num_rows);
  plain_gather_kernel<<<static_cast<unsigned>(num_blocks), threads, 0, stream>>>(params,
                                                                                 num_vectors);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
