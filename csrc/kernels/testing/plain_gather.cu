// One thread a 16-byte piece of a row, and nothing else: what the memory gives; plain_gather.h.
//
// A block owns as many rows as 256 threads hold; neighbouring threads own neighbouring pieces, so
// out is written coalesced. Bytes a row: 8 of its number, row_bytes read, row_bytes written.
#include <algorithm>
#include <limits>

#include "cuda/cuda_check.h"
#include "kernels/testing/plain_gather.h"

namespace dpiframe {
namespace {

constexpr int kThreads = 256;
constexpr int kPieceBytes = 16;

__global__ void __launch_bounds__(kThreads)
    plain_gather_kernel(const __grid_constant__ PlainGatherParams params, int num_pieces) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= params.num_rows) return;
  const uint4* row = static_cast<const uint4*>(params.table) + params.rows[i] * num_pieces;
  uint4* out = static_cast<uint4*>(params.out) + i * num_pieces;
  for (int piece = threadIdx.x; piece < num_pieces; piece += blockDim.x) out[piece] = row[piece];
}

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kPieceBytes == 0;
}

}  // namespace

void plain_gather(const PlainGatherParams& params, cudaStream_t stream) {
  DPIF_CHECK(params.row_bytes > 0 && params.row_bytes % kPieceBytes == 0,
             "row_bytes must be a multiple of ", kPieceBytes, ", got ", params.row_bytes);
  DPIF_CHECK(aligned(params.table) && aligned(params.out), "table and out must start at ",
             kPieceBytes, " bytes");
  DPIF_CHECK(params.num_rows >= 0, "num_rows must not be negative, got ", params.num_rows);
  if (params.num_rows == 0) return;
  const auto num_pieces = static_cast<int>(params.row_bytes / kPieceBytes);
  const int wide = std::min(num_pieces, kThreads);
  const dim3 threads(wide, kThreads / wide);
  const std::int64_t num_blocks = (params.num_rows + threads.y - 1) / threads.y;
  DPIF_CHECK(num_blocks <= std::numeric_limits<int>::max(), "too many rows: ", params.num_rows);
  plain_gather_kernel<<<static_cast<unsigned>(num_blocks), threads, 0, stream>>>(params,
                                                                                 num_pieces);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
