// A CTA is one warp. It takes page after page, the longest first, so that all warps end at about
// the same time.
//
// A page of 80,000 bytes is a chain of some 10^6 dependent steps, so many warps must share an SM: a
// warp needs 10 KB of shared memory. Bytes: each page is read once and written once, decompressed;
// literals of blocks with sequences are written once more.
#include <algorithm>

#include "codec/zstd/frame.cuh"
#include "cuda/cuda_check.h"
#include "parquet/gpu/decompress_pages.h"

namespace dpiframe {
namespace {

__global__ void __launch_bounds__(32, 16)
    decompress_pages_kernel(const __grid_constant__ DecompressParams params) {
  __shared__ zstd::Workspace workspace;
  for (;;) {
    int taken = 0;
    if (lanes::index() == 0) taken = static_cast<int>(atomicAdd(params.next, 1u));
    taken = lanes::shuffle(taken, 0);
    if (taken >= params.num_compressed) return;
    const parquet::Page& page = params.pages[params.order[taken]];
    const bool fine =
        zstd::decode_frame({params.compressed + page.compressed_at, page.compressed_bytes},
                           params.uncompressed + page.uncompressed_at, page.uncompressed_bytes,
                           params.literals + page.uncompressed_at, workspace);
    if (!fine && lanes::index() == 0) atomicOr(params.failed, 1u);
    lanes::sync();
  }
}

}  // namespace

void decompress_pages(const DecompressParams& params, cudaStream_t stream) {
  if (params.num_compressed == 0) return;
  int device = 0, processors = 0, warps = 0;
  DPIF_CUDA_CHECK(cudaGetDevice(&device));
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DPIF_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&warps, decompress_pages_kernel, 32, 0));
  const int blocks = std::min(params.num_compressed, processors * warps);
  decompress_pages_kernel<<<blocks, 32, 0, stream>>>(params);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
